#include "common/spec/model_sizes.h"

#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

template <typename Family>
ModelSizes Sizes(const char* name, const Family& family) {
  return {.family = name,
          .vocabulary = family.vocabulary(),
          .width = family.width(),
          .context = family.context(),
          .layers = family.layers()};
}

}  // namespace

ModelSizes SizesOf(const v1::ModelSpec& model) {
  switch (model.family_case()) {
    case v1::ModelSpec::kGpt2:
      return Sizes("gpt2", model.gpt2());
    case v1::ModelSpec::kLlama:
      return Sizes("llama", model.llama());
    case v1::ModelSpec::kBert:
      return Sizes("bert", model.bert());
    case v1::ModelSpec::kResnet: {
      const v1::ResNetSpec& resnet = model.resnet();
      const int stages = resnet.stages_size();
      const int64_t inner = resnet.width() << (stages > 0 && stages <= 8 ? stages - 1 : 0);
      return {.family = "resnet",
              .vocabulary = resnet.classes(),
              .width = inner * (resnet.bottleneck() ? 4 : 1),
              .context = 1,
              .images = true,
              .image_size = resnet.image_size()};
    }
    case v1::ModelSpec::kVit:
      return {.family = "vit",
              .vocabulary = model.vit().classes(),
              .width = model.vit().width(),
              .context = 1,
              .layers = model.vit().layers(),
              .images = true,
              .image_size = model.vit().image_size()};
    case v1::ModelSpec::FAMILY_NOT_SET:
      break;
  }
  return {};
}

}  // namespace milepost
