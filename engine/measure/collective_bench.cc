#include "engine/measure/collective_bench.h"

#include <algorithm>
#include <limits>
#include <string>

#include "common/status_macros.h"

namespace milepost::runtime {
namespace {

using Kind = Collective::Kind;

class Bench {
 public:
  Bench(Device& device, DeviceCommunicator& communicator, const CollectiveBenchOptions& options)
      : device_(device), communicator_(communicator), options_(options) {}

  absl::Status Open() {
    MP_ASSIGN_OR_RETURN(stream_, device_.AddStream());
    MP_ASSIGN_OR_RETURN(begin_, device_.AddTimer());
    MP_ASSIGN_OR_RETURN(end_, device_.AddTimer());
    MP_ASSIGN_OR_RETURN(memory_, device_.Allocate(options_.bytes));
    communicator_.Register(memory_, options_.bytes);
    return absl::OkStatus();
  }

  absl::StatusOr<double> Seconds(Kind kind, int64_t elements, const std::string& name) {
    const int world = communicator_.world();
    const Collective call = {
        .kind = kind, .elements = elements, .among = {.first = 0, .count = world, .stride = 1}};
    double fastest = std::numeric_limits<double>::infinity();
    for (int run = 0; run <= options_.repeats; ++run) {
      MP_RETURN_IF_ERROR(device_.Stamp(begin_, stream_));
      MP_RETURN_IF_ERROR(device_.Enqueue(stream_, {.issue =
                                                       [this, call] {
                                                         return communicator_.Enqueue(
                                                             call, memory_, nullptr,
                                                             device_.native_stream(stream_));
                                                       },
                                                   .name = name,
                                                   .accesses = {}}));
      MP_RETURN_IF_ERROR(device_.Stamp(end_, stream_));
      MP_RETURN_IF_ERROR(device_.Synchronize(stream_, options_.timeout));
      MP_RETURN_IF_ERROR(communicator_.Health());
      MP_ASSIGN_OR_RETURN(const double seconds, device_.Elapsed(begin_, end_));
      if (run > 0) fastest = std::min(fastest, seconds);
    }
    return fastest;
  }

 private:
  Device& device_;
  DeviceCommunicator& communicator_;
  const CollectiveBenchOptions options_;
  StreamId stream_ = 0;
  TimerId begin_ = 0;
  TimerId end_ = 0;
  char* memory_ = nullptr;
};

}  // namespace

absl::StatusOr<CollectiveRates> MeasureCollectives(Device& device, DeviceCommunicator& communicator,
                                                   const CollectiveBenchOptions& options) {
  const int world = communicator.world();
  if (world < 2) return absl::InvalidArgumentError("one rank talks to nobody");
  Bench bench(device, communicator, options);
  MP_RETURN_IF_ERROR(bench.Open());
  const int64_t each = options.bytes / static_cast<int64_t>(sizeof(float)) / world;
  const int64_t elements = each * world;
  // What a rank keeps need not travel.
  const double part = static_cast<double>(each * (world - 1)) * sizeof(float);
  CollectiveRates rates;
  MP_ASSIGN_OR_RETURN(const double reduce, bench.Seconds(Kind::kAllReduce, elements, "all-reduce"));
  MP_ASSIGN_OR_RETURN(const double scatter,
                      bench.Seconds(Kind::kReduceScatter, elements, "reduce-scatter"));
  MP_ASSIGN_OR_RETURN(const double gather, bench.Seconds(Kind::kAllGather, elements, "all-gather"));
  MP_ASSIGN_OR_RETURN(rates.small_seconds, bench.Seconds(Kind::kAllReduce, 1, "small all-reduce"));
  rates.all_reduce = 2 * part / reduce;
  rates.reduce_scatter = part / scatter;
  rates.all_gather = part / gather;
  return rates;
}

}  // namespace milepost::runtime
