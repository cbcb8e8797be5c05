#include "client/cli/fit.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/host_memory.h"
#include "common/status_macros.h"
#include "engine/plan/admission.h"

namespace milepost::client {

int ThreadsPerRank(const v1::JobSpec& spec) {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int asked = spec.resources().threads_per_rank();
  return asked > 0 ? asked : std::max(1, cores / spec.resources().ranks());
}

int64_t HostBytesPerRank(int ranks) { return MemoryLimitBytes() / ranks; }

absl::StatusOr<plan::RankPlace> PlaceOnHost(const v1::JobSpec& spec) {
  const int ranks = spec.resources().ranks();
  const int threads = ThreadsPerRank(spec);
  MP_ASSIGN_OR_RETURN(const plan::DeviceProfile profile, plan::ProfileOf(spec, threads));
  plan::RankPlace place = {.profile = profile, .threads = threads};
  if (spec.resources().device() == v1::DEVICE_KIND_CUDA) {
    place.memory_bytes = plan::UsableBytes(profile);
    place.memory_of = absl::StrCat("a rank with one ", profile.name);
    place.host_memory = false;
  } else {
    place.memory_bytes = HostBytesPerRank(ranks);
    place.memory_of = ranks == 1 ? "this host" : absl::StrCat("this host over ", ranks, " ranks");
  }
  const int64_t declared = spec.resources().memory();
  if (declared > 0 && declared < place.memory_bytes) {
    place.memory_bytes = declared;
    place.memory_of = "a rank, as resources.memory says,";
  }
  return place;
}

}  // namespace milepost::client
