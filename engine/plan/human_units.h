// Bytes and seconds as people read them.
//
//   HumanBytes(64278364) == "61.30 MiB"
#ifndef MILEPOST_ENGINE_PLAN_HUMAN_UNITS_H_
#define MILEPOST_ENGINE_PLAN_HUMAN_UNITS_H_

#include <string>

namespace milepost::plan {

std::string HumanBytes(double bytes);      // "61.30 MiB"
std::string HumanSeconds(double seconds);  // "1.20 s", "3.45 ms"

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_HUMAN_UNITS_H_
