// The environment of child processes that compute with OpenMP.
#ifndef MILEPOST_COMMON_OPENMP_H_
#define MILEPOST_COMMON_OPENMP_H_

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace milepost {

// By default libgomp's threads spin for milliseconds at the end of each parallel region. When
// another process needs the same cores, the spinning thread takes them from the one that it waits
// for. Beside one busy loop, two threads on two cores then reach 0.36 of their rate. With 10000
// rounds of spinning they reach 0.44, and with the 1000 used here 0.56 (bench/step, 6x384, bf16,
// AMD Zen 5). On idle cores this costs 2%. The user's own setting wins.
inline std::vector<std::pair<std::string, std::string>> ShortOpenMpSpins() {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) {
    return {};
  }
  return {{"GOMP_SPINCOUNT", "1000"}};
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_OPENMP_H_
