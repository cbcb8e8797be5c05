// The environment of child processes that compute with OpenMP.
#ifndef MILEPOST_COMMON_OPENMP_H_
#define MILEPOST_COMMON_OPENMP_H_

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace milepost {

// By default libgomp's threads spin for milliseconds at the end of each parallel region. Where
// another process wants the same cores, a small model trains many times slower for it; this many
// rounds cost about 1% on idle cores (bench/step, 6x384, bf16, two threads). The user's own setting
// wins.
inline std::vector<std::pair<std::string, std::string>> ShortOpenMpSpins() {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) {
    return {};
  }
  return {{"GOMP_SPINCOUNT", "10000"}};
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_OPENMP_H_
