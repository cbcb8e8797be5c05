// The environment of child processes that compute with OpenMP.
#ifndef MILEPOST_COMMON_OPENMP_H_
#define MILEPOST_COMMON_OPENMP_H_

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace milepost {

// By default libgomp's threads spin for milliseconds at the end of each parallel region. Where
// another process wants the same cores, the one that spins takes them from the one that it waits
// for. Beside one busy loop, two threads on two cores have 0.36 of their rate so, 0.44 with 10000
// rounds and 0.56 with this many (bench/step, 6x384, bf16, AMD Zen 5); it costs 2% on idle cores.
// The user's own setting wins.
inline std::vector<std::pair<std::string, std::string>> ShortOpenMpSpins() {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) {
    return {};
  }
  return {{"GOMP_SPINCOUNT", "1000"}};
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_OPENMP_H_
