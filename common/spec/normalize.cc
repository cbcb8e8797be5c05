// The defaults of validate.h.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/match.h"
#include "common/spec/auto_fields.h"
#include "common/spec/model_sizes.h"
#include "common/spec/optimizer_fields.h"
#include "common/spec/orthogonalization.h"
#include "common/spec/sizes.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

// Sets an absent `optional` field.
#define MP_DEFAULT(message, field, value)                           \
  do {                                                              \
    if (!(message)->has_##field()) (message)->set_##field((value)); \
  } while (false)

// Sets an enum that is still UNSPECIFIED.
#define MP_DEFAULT_ENUM(message, field, value)                    \
  do {                                                            \
    if ((message)->field() == 0) (message)->set_##field((value)); \
  } while (false)

std::optional<int64_t> Product(int64_t a, int64_t b) {
  int64_t product;
  if (a < 1 || b < 1 || __builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// Derives the third of (global, micro, accumulation) when it is a whole number; leaves it absent
// otherwise, for CheckJobSpec to explain.
void DeriveBatch(int32_t ranks, v1::BatchSpec* batch) {
  const bool global = batch->has_global();
  const bool micro = batch->has_micro();
  const bool accumulation = batch->has_accumulation();
  if (global + micro + accumulation != 2) return;
  if (!global) {
    const auto per_rank = Product(batch->micro(), batch->accumulation());
    const auto total = per_rank ? Product(*per_rank, ranks) : std::nullopt;
    if (total) batch->set_global(*total);
    return;
  }
  const auto divisor = Product(micro ? batch->micro() : batch->accumulation(), ranks);
  if (!divisor || batch->global() < 1 || batch->global() % *divisor != 0) return;
  const int64_t third = batch->global() / *divisor;
  micro ? batch->set_accumulation(third) : batch->set_micro(third);
}

// One is none, so that specs from before there were several keep their digests.
void NormalizeSideBySide(v1::BatchSpec* batch) {
  if (batch->has_side_by_side() && batch->side_by_side() == 1) batch->clear_side_by_side();
}

void NormalizeLlama(v1::LlamaSpec* llama) {
  MP_DEFAULT(llama, kv_heads, llama->heads());
  if (llama->heads() > 0 && llama->width() % llama->heads() == 0) {
    MP_DEFAULT(llama, head_dim, llama->width() / llama->heads());
  }
  MP_DEFAULT(llama, rope_theta, 10000.0);
  if (llama->has_rope_scaling()) {
    v1::RopeScalingSpec* scaling = llama->mutable_rope_scaling();
    MP_DEFAULT(scaling, factor, 8.0);
    if (scaling->type() != v1::RopeScalingSpec::TYPE_LINEAR) {
      MP_DEFAULT(scaling, low_freq_factor, 1.0);
      MP_DEFAULT(scaling, high_freq_factor, 4.0);
      MP_DEFAULT(scaling, original_context, 8192);
    }
    if (scaling->type() == v1::RopeScalingSpec::TYPE_LLAMA3) scaling->clear_type();
  }
  MP_DEFAULT(llama, norm_epsilon, 1e-5);
  MP_DEFAULT(llama, tied, false);
  MP_DEFAULT(llama, qkv_bias, false);
  MP_DEFAULT(llama, qk_norm, false);
  // Left out, as in jobs from before there was a choice: a trainer of that version, which does not
  // know the field, has the same digest of its state.
  if (llama->activation() == v1::LlamaSpec::ACTIVATION_SWIGLU) llama->clear_activation();
  if (!llama->norm_offset()) llama->clear_norm_offset();
  if (!llama->post_norms()) llama->clear_post_norms();
  if (!llama->scale_embedding()) llama->clear_scale_embedding();
  if (llama->pre_norms()) llama->clear_pre_norms();
  if (!llama->wide_qk_norm()) llama->clear_wide_qk_norm();
  if (llama->has_experts()) {
    v1::ExpertsSpec* experts = llama->mutable_experts();
    MP_DEFAULT(experts, hidden, llama->hidden());
    MP_DEFAULT(experts, normalize, experts->per_token() != 1);
    MP_DEFAULT(experts, balance_loss, 0.001);
    MP_DEFAULT(experts, z_loss, 0.0);
  }
  if (!llama->has_window()) return;
  if (llama->window().full_every() == 0) llama->mutable_window()->clear_full_every();
  // One that no sequence leaves is none.
  const bool leaves = llama->window().positions() < llama->context();
  if (!leaves && !llama->window().has_full_every() && !llama->window().has_rope_theta()) {
    llama->clear_window();
  }
}

// Layers of the four stages of the well-known depths.
struct ResNetDepth {
  int64_t depth;
  int64_t layers[4];
  bool bottleneck;
};
constexpr ResNetDepth kResNetDepths[] = {{18, {2, 2, 2, 2}, false},
                                         {34, {3, 4, 6, 3}, false},
                                         {50, {3, 4, 6, 3}, true},
                                         {101, {3, 4, 23, 3}, true},
                                         {152, {3, 8, 36, 3}, true}};

void SetRgb(double red, double green, double blue, v1::RgbSpec* rgb) {
  rgb->set_red(red);
  rgb->set_green(green);
  rgb->set_blue(blue);
}

void NormalizeResNet(v1::ResNetSpec* resnet) {
  for (const ResNetDepth& known : kResNetDepths) {
    if (known.depth != resnet->depth()) continue;
    if (resnet->stages_size() == 0) {
      for (int64_t layers : known.layers) resnet->add_stages()->set_layers(layers);
    }
    MP_DEFAULT(resnet, bottleneck, known.bottleneck);
  }
  MP_DEFAULT(resnet, bottleneck, false);
  MP_DEFAULT(resnet, image_size, 224);
  MP_DEFAULT(resnet, width, 64);
  MP_DEFAULT(resnet, label_smoothing, 0.0);
  MP_DEFAULT(resnet, sync_statistics, false);
  MP_DEFAULT(resnet, zero_init_residual, false);
  if (!resnet->has_pixel_mean()) SetRgb(0.485, 0.456, 0.406, resnet->mutable_pixel_mean());
  if (!resnet->has_pixel_deviation()) {
    SetRgb(0.229, 0.224, 0.225, resnet->mutable_pixel_deviation());
  }
}

void NormalizeVit(v1::VitSpec* vit) {
  const auto hidden = Product(4, vit->width());
  if (hidden) MP_DEFAULT(vit, hidden, *hidden);
  MP_DEFAULT(vit, image_size, 224);
  MP_DEFAULT(vit, patch_size, 16);
  MP_DEFAULT(vit, norm_epsilon, 1e-12);
  MP_DEFAULT(vit, label_smoothing, 0.0);
  if (!vit->has_pixel_mean()) SetRgb(0.5, 0.5, 0.5, vit->mutable_pixel_mean());
  if (!vit->has_pixel_deviation()) SetRgb(0.5, 0.5, 0.5, vit->mutable_pixel_deviation());
}

void NormalizeBert(v1::BertSpec* bert) {
  const auto hidden = Product(4, bert->width());
  if (hidden) MP_DEFAULT(bert, hidden, *hidden);
  MP_DEFAULT(bert, segments, 2);
  MP_DEFAULT(bert, norm_epsilon, 1e-12);
}

void NormalizeLora(v1::LoraSpec* lora) {
  MP_DEFAULT(lora, alpha, static_cast<double>(lora->rank()));
  MP_DEFAULT(lora, rank_stabilized, false);
  MP_DEFAULT(lora, dropout, 0.0);
  if (!lora->dora()) lora->clear_dora();  // the digest of a state from before there was a choice
  MP_DEFAULT_ENUM(lora, quantize_base, v1::BASE_QUANTIZATION_NONE);
}

// A field that the type does not have stays absent.
void NormalizeOptimizer(v1::Precision precision, v1::OptimizerSpec* optimizer) {
  for (v1::ParameterGroupSpec& group : *optimizer->mutable_groups()) {
    MP_DEFAULT(&group, lr_scale, 1.0);
    MP_DEFAULT(&group, freeze, false);
  }
  MP_DEFAULT_ENUM(optimizer, state_dtype, v1::STATE_DTYPE_FP32);
  MP_DEFAULT_ENUM(optimizer, master, v1::MASTER_DTYPE_FP32);
  const OptimizerFields* fields = FieldsOf(optimizer->type());
  if (fields == nullptr) return;
  MP_DEFAULT(optimizer, lr, fields->lr);
  MP_DEFAULT(optimizer, weight_decay, fields->weight_decay);
  if (fields->beta1) MP_DEFAULT(optimizer, beta1, *fields->beta1);
  if (fields->beta2) MP_DEFAULT(optimizer, beta2, *fields->beta2);
  if (fields->beta3) MP_DEFAULT(optimizer, beta3, *fields->beta3);
  if (fields->epsilon) MP_DEFAULT(optimizer, epsilon, *fields->epsilon);
  if (fields->momentum) MP_DEFAULT(optimizer, momentum, *fields->momentum);
  if (!fields->orthogonalizes) return;
  MP_DEFAULT(optimizer, nesterov, true);
  MP_DEFAULT(optimizer, adamw_lr, optimizer->lr());
  MP_DEFAULT_ENUM(optimizer, orthogonalization, DefaultOrthogonalization(precision));
}

void NormalizeLossScale(v1::LossScaleSpec* scale) {
  MP_DEFAULT(scale, initial, 65536.0);
  MP_DEFAULT(scale, growth, 2.0);
  MP_DEFAULT(scale, backoff, 0.5);
  MP_DEFAULT(scale, growth_interval, 2000);
  MP_DEFAULT(scale, floor, 1.0);
}

void NormalizePowerSgd(v1::PowerSgdSpec* powersgd) {
  MP_DEFAULT(powersgd, rank, 4);
  MP_DEFAULT(powersgd, start_step, 1000);
  MP_DEFAULT(powersgd, warm_start, true);
}

void NormalizeSync(v1::SyncSpec* sync) {
  MP_DEFAULT(sync, every, 0);
  MP_DEFAULT(sync, islands, 0);
  v1::OuterOptimizerSpec* outer = sync->mutable_outer_optimizer();
  MP_DEFAULT(outer, lr, 0.7);
  MP_DEFAULT(outer, momentum, 0.9);
  MP_DEFAULT(outer, nesterov, true);
}

// `open`: how many ranks have samples of their own is still to be chosen.
void NormalizeTrain(int32_t ranks, bool open, v1::TrainSpec* train) {
  if (train->has_dpo()) {
    MP_DEFAULT(train->mutable_dpo(), beta, 0.1);
    MP_DEFAULT(train->mutable_dpo(), label_smoothing, 0.0);
  }
  MP_DEFAULT(train, seed, 0);
  MP_DEFAULT_ENUM(train, precision, v1::PRECISION_BF16);
  MP_DEFAULT_ENUM(train, recompute, v1::RECOMPUTE_NONE);
  MP_DEFAULT_ENUM(train, grad_reduce, v1::GRAD_REDUCE_FP32);
  MP_DEFAULT_ENUM(train, grad_dtype, v1::GRAD_DTYPE_FP32);
  MP_DEFAULT_ENUM(train, memory, v1::MEMORY_USE_EXACT);
  MP_DEFAULT_ENUM(train, determinism, v1::DETERMINISM_EXACT);
  if (train->precision() == v1::PRECISION_FP16) NormalizeLossScale(train->mutable_loss_scale());
  NormalizeSideBySide(train->mutable_batch());
  if (!open) DeriveBatch(ranks, train->mutable_batch());
  MP_DEFAULT(train->mutable_zero(), stage, train->has_powersgd() ? 0 : 1);
  MP_DEFAULT(train->mutable_zero(), prefetch, 1);
  MP_DEFAULT(train->mutable_zero(), group, 0);
  MP_DEFAULT_ENUM(train->mutable_offload(), optimizer, v1::OFFLOAD_TARGET_NONE);
  MP_DEFAULT(train->mutable_offload(), activations, false);

  v1::OptimizerSpec* optimizer = train->mutable_optimizer();
  MP_DEFAULT_ENUM(optimizer, type, v1::OptimizerSpec::TYPE_ADAMW);
  NormalizeOptimizer(train->precision(), optimizer);

  v1::ScheduleSpec* schedule = train->mutable_schedule();
  MP_DEFAULT_ENUM(schedule, type, v1::ScheduleSpec::TYPE_COSINE);
  MP_DEFAULT(schedule, warmup_steps, 0);
  const bool constant = schedule->type() == v1::ScheduleSpec::TYPE_CONSTANT;
  const bool inverse_sqrt = schedule->type() == v1::ScheduleSpec::TYPE_INVERSE_SQRT;
  MP_DEFAULT(schedule, final_lr_ratio, constant ? 1.0 : inverse_sqrt ? 0.0 : 0.1);
  const bool stable = schedule->type() == v1::ScheduleSpec::TYPE_WARMUP_STABLE_DECAY;
  const int64_t rest = std::max<int64_t>(0, train->steps() - schedule->warmup_steps());
  MP_DEFAULT(schedule, decay_steps, stable ? std::min(rest, train->steps() / 5) : 0);

  MP_DEFAULT(train, clip_norm, 1.0);
  MP_DEFAULT_ENUM(train, on_nonfinite, v1::ON_NONFINITE_SKIP);
  MP_DEFAULT(train, max_skipped_steps, kDefaultSkippedSteps);
  if (train->has_powersgd()) NormalizePowerSgd(train->mutable_powersgd());
  if (train->has_sync()) NormalizeSync(train->mutable_sync());
  MP_DEFAULT(train->mutable_validation(), every, 0);
  MP_DEFAULT(train->mutable_validation(), samples, 64);
  MP_DEFAULT(train->mutable_validation(), patience, 0);
  if (!train->has_ema()) return;
  MP_DEFAULT(train->mutable_ema(), decay, 0.999);
  MP_DEFAULT(train->mutable_ema(), warmup, true);
}

// Of a model without further heads the weight of its own stays as it was given.
void NormalizeHeads(v1::JobSpec* spec) {
  if (spec->model().heads_size() == 0) return;
  v1::ModelSpec* model = spec->mutable_model();
  MP_DEFAULT(model, head_weight, 1.0);
  for (v1::TaskHeadSpec& head : *model->mutable_heads()) MP_DEFAULT(&head, weight, 1.0);
}

// Plain pixels are taken as they are unless something else is said.
void NormalizeImages(int64_t image_size, v1::DataSpec* data) {
  const bool plain = absl::EndsWith(data->train(), ".npy");
  v1::ImageDataSpec* images = data->mutable_images();
  MP_DEFAULT_ENUM(images, crop, plain ? v1::IMAGE_CROP_CENTRE : v1::IMAGE_CROP_RANDOM);
  MP_DEFAULT(images, min_scale, 0.08);
  MP_DEFAULT(images, max_scale, 1.0);
  MP_DEFAULT(images, min_ratio, 0.75);
  MP_DEFAULT(images, max_ratio, 4.0 / 3);
  MP_DEFAULT(images, flip, plain ? 0.0 : 0.5);
  MP_DEFAULT(images, resize, plain ? image_size : image_size * 8 / 7);
  if (images->has_patch()) {
    MP_DEFAULT(images->mutable_patch(), size, image_size);
    MP_DEFAULT(images->mutable_patch(), stride, images->patch().size());
  }
  MP_DEFAULT(images, decode_threads, 4);
  MP_DEFAULT_ENUM(images, on_corrupt, v1::ON_CORRUPT_FAIL);
  MP_DEFAULT(images, max_pixels, int64_t{1} << 27);
}

// What a script's job does not have.
void NormalizeTraining(v1::JobSpec* spec) {
  v1::DataSpec* data = spec->mutable_data();
  for (v1::TokenSource& source : *data->mutable_mixture()) MP_DEFAULT(&source, weight, 1.0);
  NormalizeHeads(spec);
  if (spec->model().has_llama()) NormalizeLlama(spec->mutable_model()->mutable_llama());
  if (spec->model().has_resnet()) NormalizeResNet(spec->mutable_model()->mutable_resnet());
  if (spec->model().has_vit()) NormalizeVit(spec->mutable_model()->mutable_vit());
  const ModelSizes sizes = SizesOf(spec->model());
  if (sizes.images) NormalizeImages(sizes.image_size, data);
  if (spec->model().has_bert()) NormalizeBert(spec->mutable_model()->mutable_bert());
  if (spec->model().has_lora()) NormalizeLora(spec->mutable_model()->mutable_lora());
  if (data->has_masking()) MP_DEFAULT(data->mutable_masking(), probability, 0.15);
  if (spec->model().family_case() != v1::ModelSpec::FAMILY_NOT_SET) {
    MP_DEFAULT(data, sequence_length, sizes.context);
  }
  NormalizeTrain(DataRanks(spec->resources()), TensorIsAuto(*spec), spec->mutable_train());

  v1::CheckpointSpec* checkpoint = spec->mutable_checkpoint();
  MP_DEFAULT(checkpoint, every, 0);
  MP_DEFAULT(checkpoint, keep_last, 3);
  MP_DEFAULT(checkpoint, keep_every, 0);
  MP_DEFAULT(checkpoint, redundancy, 0);
  MP_DEFAULT(checkpoint, keep_best, false);
}

// A mesh of one rank is none. What has no pipeline says nothing of one, nor of context or expert
// ranks: so specs from before there were these, or meshes, keep their digests.
void NormalizeMesh(v1::ResourceSpec* resources) {
  if (!resources->has_mesh()) return;
  v1::MeshSpec* mesh = resources->mutable_mesh();
  if (mesh->has_pipeline() && mesh->pipeline() == 1) {
    mesh->clear_pipeline();
    mesh->clear_schedule();
    mesh->clear_chunks();
  }
  if (mesh->has_context() && mesh->context() == 1) mesh->clear_context();
  if (mesh->has_expert() && mesh->expert() == 1) mesh->clear_expert();
  const bool others = mesh->has_pipeline() || mesh->has_context() || mesh->has_expert();
  if (others) MP_DEFAULT(mesh, tensor, 1);
  if (mesh->has_pipeline()) MP_DEFAULT_ENUM(mesh, schedule, v1::PIPELINE_SCHEDULE_1F1B);
  if (mesh->schedule() == v1::PIPELINE_SCHEDULE_INTERLEAVED) MP_DEFAULT(mesh, chunks, 2);
  const bool divides = (mesh->has_tensor() && mesh->tensor() != 1) || others ||
                       mesh->schedule() != v1::PIPELINE_SCHEDULE_UNSPECIFIED;
  if (!divides) resources->clear_mesh();
}

}  // namespace

void NormalizeJobSpec(v1::JobSpec* spec) {
  v1::ResourceSpec* resources = spec->mutable_resources();
  MP_DEFAULT(resources, ranks, 1);
  MP_DEFAULT_ENUM(resources, device, v1::DEVICE_KIND_CPU);
  MP_DEFAULT(resources, threads_per_rank, 0);
  NormalizeMesh(resources);
  if (!spec->has_script()) NormalizeTraining(spec);

  v1::SchedulingSpec* scheduling = spec->mutable_scheduling();
  if (scheduling->queue().empty()) scheduling->set_queue("default");
  MP_DEFAULT(scheduling, priority, 0);
  MP_DEFAULT(scheduling, time_limit, 0.0);

  spec->mutable_report();
  v1::RestartSpec* restart = spec->mutable_restart();
  MP_DEFAULT(restart, max_failures, 3);
  MP_DEFAULT(restart, backoff_seconds, 1.0);
  MP_DEFAULT(restart, replace_stragglers, false);
}

}  // namespace milepost
