// Where a piece of a tensor's state lies in host memory: what a restore fills and a save reads.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_STATE_INTERVAL_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_STATE_INTERVAL_H_

#include <algorithm>
#include <cstdint>

namespace milepost::runtime {

// A piece of one tensor's state: elements [begin, end), flat, row-major. Of a tensor that tensor
// ranks divide it has those of them that are in [first, first + run), in [first + period, first +
// period + run) and so on. Its first and its last one are `begin` and `end - 1`.
struct StateInterval {
  int32_t tensor = 0;  // index into the list of state tensors
  int64_t begin = 0;
  int64_t end = 0;
  char* data = nullptr;  // host memory; the interval's elements, one behind the other
  int64_t run = 0;       // 0: all elements of the interval
  int64_t period = 0;
  int64_t first = 0;

  int64_t elements() const { return ElementsBefore(end); }
  // How many of the interval's elements come before `element`, which is in [begin, end].
  int64_t ElementsBefore(int64_t element) const {
    return run == 0 ? element - begin : Counted(element) - Counted(begin);
  }
  // visit(from, to) for all of [low, high) that it has, in pieces without a gap, in order.
  template <typename Visit>
  void ForPieces(int64_t low, int64_t high, const Visit& visit) const {
    low = std::max(low, begin), high = std::min(high, end);
    if (low >= high) return;
    if (run == 0) return visit(low, high);
    for (int64_t at = first + (low - first) / period * period; at < high; at += period) {
      const int64_t from = std::max(at, low), to = std::min(at + run, high);
      if (from < to) visit(from, to);
    }
  }

 private:
  int64_t Counted(int64_t element) const {
    const int64_t from = element - first;
    return from / period * run + std::min(from % period, run);
  }
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_STATE_INTERVAL_H_
