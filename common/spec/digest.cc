// The digests of validate.h.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <xxhash.h>

#include "absl/strings/str_format.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

std::string Digest(const google::protobuf::Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

bool Same(const v1::JobSpec& a, const v1::JobSpec& b) {
  return a.SerializeAsString() == b.SerializeAsString();
}

// The last field of LlamaSpec that was there when the first checkpoints were stored.
constexpr int kLastFirstLlamaField = v1::LlamaSpec::kQkvBiasFieldNumber;

// Fields that came after checkpoints had been stored are left out where they have their defaults:
// those checkpoints go on.
void ClearLaterDefaults(v1::ModelSpec* model) {
  if (!model->has_llama()) return;
  v1::JobSpec given;
  *given.mutable_model()->mutable_llama() = model->llama();
  NormalizeJobSpec(&given);
  const google::protobuf::Descriptor* fields = v1::LlamaSpec::descriptor();
  for (int i = 0; i < fields->field_count(); ++i) {
    if (fields->field(i)->number() <= kLastFirstLlamaField) continue;
    v1::JobSpec without = given;
    v1::LlamaSpec* llama = without.mutable_model()->mutable_llama();
    llama->GetReflection()->ClearField(llama, fields->field(i));
    NormalizeJobSpec(&without);
    if (!Same(given, without)) continue;
    model->mutable_llama()->GetReflection()->ClearField(model->mutable_llama(), fields->field(i));
  }
}

}  // namespace

std::string SpecDigest(const v1::JobSpec& normalized) { return Digest(normalized); }

std::string StateDigest(const v1::JobSpec& normalized) {
  v1::JobSpec relevant;
  *relevant.mutable_model() = normalized.model();
  // How much a task counts may change on the way, like the learning rate.
  relevant.mutable_model()->clear_head_weight();
  for (v1::TaskHeadSpec& head : *relevant.mutable_model()->mutable_heads()) head.clear_weight();
  if (relevant.model().llama().has_experts()) {
    v1::ExpertsSpec* experts = relevant.mutable_model()->mutable_llama()->mutable_experts();
    experts->clear_balance_loss();
    experts->clear_z_loss();
  }
  if (relevant.model().has_lora()) {
    relevant.mutable_model()->mutable_lora()->clear_dropout();
    relevant.mutable_model()->mutable_lora()->clear_quantize_base();  // no part of the state
  }
  ClearLaterDefaults(relevant.mutable_model());
  relevant.mutable_data()->set_sequence_length(normalized.data().sequence_length());
  relevant.mutable_train()->set_seed(normalized.train().seed());
  relevant.mutable_train()->mutable_optimizer()->set_type(normalized.train().optimizer().type());
  // fp32 is left out: a checkpoint made before there was a choice has it.
  if (normalized.train().optimizer().state_dtype() == v1::STATE_DTYPE_BF16) {
    relevant.mutable_train()->mutable_optimizer()->set_state_dtype(v1::STATE_DTYPE_BF16);
  }
  return Digest(relevant);
}

std::string LineageDigest(const v1::JobSpec& normalized) {
  v1::JobSpec lineage = normalized;
  // A job from before a field existed has its default now.
  NormalizeJobSpec(&lineage);
  lineage.clear_name();
  lineage.clear_scheduling();  // when it runs is not what it computes
  // Nor where: on which devices, and in which pool.
  lineage.mutable_resources()->clear_device_model();
  lineage.mutable_resources()->clear_pool();
  lineage.mutable_train()->clear_steps();
  // Its default follows the steps.
  lineage.mutable_train()->mutable_schedule()->clear_decay_steps();
  return Digest(lineage);
}

}  // namespace milepost
