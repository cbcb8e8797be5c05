#include "engine/models/model.h"

#include "common/spec/unknown_fields.h"
#include "common/status_macros.h"
#include "engine/models/bert.h"
#include "engine/models/gpt2.h"
#include "engine/models/llama.h"
#include "engine/models/resnet.h"
#include "engine/models/vit.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {

absl::StatusOr<graph::Graph> BuildModel(const v1::ModelSpec& spec, const ModelOptions& options) {
  MP_RETURN_IF_ERROR(CheckModelIsKnown(spec));
  switch (spec.family_case()) {
    case v1::ModelSpec::kGpt2:
      return BuildGpt2(spec, options);
    case v1::ModelSpec::kLlama:
      return BuildLlama(spec, options);
    case v1::ModelSpec::kBert:
      return BuildBert(spec, options);
    case v1::ModelSpec::kResnet:
      return BuildResNet(spec, options);
    case v1::ModelSpec::kVit:
      return BuildVit(spec, options);
    case v1::ModelSpec::FAMILY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "model: no family given; expected gpt2, llama, bert, resnet or vit");
}

}  // namespace milepost::models
