// Any text as a Hugging Face folder's config.json: refused with a message, or a model whose own
// config is that model again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/check.h"
#include "engine/models/hugging_face.h"
#include "milepost/v1/job_spec.pb.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto model = milepost::models::ModelOfHfConfig(text);
  if (!model.ok()) {
    MP_CHECK(!model.status().message().empty());
    return 0;
  }
  const auto config = milepost::models::HfConfig(*model, "float32", text);
  MP_CHECK(config.ok()) << config.status();
  const auto again = milepost::models::ModelOfHfConfig(*config);
  MP_CHECK(again.ok()) << again.status();
  MP_CHECK(again->SerializeAsString() == model->SerializeAsString()) << *config;
  return 0;
}
