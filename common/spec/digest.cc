// The digests of validate.h.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <xxhash.h>

#include "absl/strings/str_format.h"
#include "common/spec/orthogonalization.h"
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

// What was made before there was a choice goes on: a default that was added later is left out.
void ClearLaterDefaults(v1::ModelSpec* model) {
  if (!model->has_llama()) return;
  v1::LlamaSpec* llama = model->mutable_llama();
  if (!llama->qk_norm()) llama->clear_qk_norm();
  if (llama->activation() == v1::LlamaSpec::ACTIVATION_SWIGLU) llama->clear_activation();
}

void ClearLaterDefaults(v1::TrainSpec* train) {
  if (train->max_skipped_steps() == kDefaultSkippedSteps) train->clear_max_skipped_steps();
  if (train->grad_dtype() == v1::GRAD_DTYPE_FP32) train->clear_grad_dtype();
  if (train->memory() == v1::MEMORY_USE_EXACT) train->clear_memory();
  v1::OptimizerSpec* optimizer = train->mutable_optimizer();
  if (optimizer->master() == v1::MASTER_DTYPE_FP32) optimizer->clear_master();
  if (optimizer->orthogonalization() == DefaultOrthogonalization(train->precision())) {
    optimizer->clear_orthogonalization();
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
  lineage.clear_name();
  lineage.clear_scheduling();  // when it runs is not what it computes
  // Nor where: on which devices, and in which pool.
  lineage.mutable_resources()->clear_device_model();
  lineage.mutable_resources()->clear_pool();
  ClearLaterDefaults(lineage.mutable_model());
  ClearLaterDefaults(lineage.mutable_train());
  lineage.mutable_train()->clear_steps();
  // Its default follows the steps.
  lineage.mutable_train()->mutable_schedule()->clear_decay_steps();
  return Digest(lineage);
}

}  // namespace milepost
