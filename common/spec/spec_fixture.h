// For the tests of this folder: a small valid spec, and what is wrong with others.
#ifndef MILEPOST_COMMON_SPEC_SPEC_FIXTURE_H_
#define MILEPOST_COMMON_SPEC_SPEC_FIXTURE_H_

#include <string>
#include <vector>

#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {

inline constexpr char kSpecYaml[] = R"(name: small
model:
  gpt2:
    layers: 2
    width: 64
    heads: 4
    context: 32
    vocabulary: 256
data:
  train: /data/train.npy
  validation: /data/validation.npy
train:
  steps: 10
  batch:
    global: 16
    micro: 4
resources:
  ranks: 2
)";

// In the order of the checks.
inline std::vector<std::string> FieldsOf(const v1::JobSpec& spec) {
  std::vector<std::string> fields;
  for (const FieldViolation& violation : CheckJobSpec(spec)) fields.push_back(violation.field);
  return fields;
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_SPEC_FIXTURE_H_
