// Any text as a job spec: refused with a message, or read, completed and checked; and what passes
// the checks is written as YAML that means the same.
#include <google/protobuf/util/message_differencer.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/check.h"
#include "common/spec/parse.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using milepost::v1::JobSpec;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  absl::StatusOr<JobSpec> spec = milepost::ParseJobSpecYaml(text, "fuzz.yaml");
  if (!spec.ok()) {
    MP_CHECK(!spec.status().message().empty());
    return 0;
  }
  milepost::NormalizeJobSpec(&*spec);
  const absl::Status valid = milepost::ValidateJobSpec(*spec);
  if (!valid.ok()) {
    MP_CHECK(!valid.message().empty());
    return 0;
  }
  const std::string yaml = milepost::MessageToYaml(*spec);
  const absl::StatusOr<JobSpec> again = milepost::ParseJobSpecYaml(yaml, "again.yaml");
  MP_CHECK(again.ok()) << again.status() << "\n" << yaml;
  MP_CHECK(google::protobuf::util::MessageDifferencer::Equals(*spec, *again)) << yaml;
  return 0;
}
