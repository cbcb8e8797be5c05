#include "client/cli/fit.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cpu_features.h"
#include "common/host_memory.h"
#include "common/spec/to_yaml.h"
#include "common/status_macros.h"
#include "engine/plan/estimates/faster_precision.h"
#include "engine/plan/fit/fit.h"

namespace milepost::client {
namespace {

// If it is less than what the place has.
void SetDeclaredMemory(const v1::JobSpec& spec, plan::RankPlace* place) {
  const int64_t declared = spec.resources().memory();
  if (declared <= 0 || declared >= place->memory_bytes) return;
  place->memory_bytes = declared;
  place->memory_of = "a rank, as resources.memory says,";
}

}  // namespace

int ThreadsPerRank(const v1::JobSpec& spec) {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int asked = spec.resources().threads_per_rank();
  return asked > 0 ? asked : std::max(1, cores / spec.resources().ranks());
}

int64_t HostBytesPerRank(int ranks) { return MemoryLimitBytes() / ranks; }

void SetDeviceMemory(const plan::DeviceProfile& profile, const v1::JobSpec& spec,
                     plan::RankPlace* place) {
  place->memory_bytes = plan::UsableBytes(profile);
  place->memory_of = absl::StrCat("a rank with one ", profile.name);
  place->host_memory = false;
  SetDeclaredMemory(spec, place);
}

absl::StatusOr<plan::RankPlace> PlaceOnHost(const v1::JobSpec& spec) {
  const int ranks = spec.resources().ranks();
  const int threads = ThreadsPerRank(spec);
  MP_ASSIGN_OR_RETURN(plan::DeviceProfile profile, plan::ProfileOf(spec, threads));
  const bool cpu = spec.resources().device() != v1::DEVICE_KIND_CUDA;
  // The built-in CPU has fast instructions for bf16. Without, bf16 goes through fp32.
  if (cpu && !HostMultipliesBf16().Any()) profile.matmul.erase("BF16");
  plan::RankPlace place = {.profile = profile, .threads = threads};
  if (!cpu) {
    SetDeviceMemory(profile, spec, &place);
    return place;
  }
  place.memory_bytes = HostBytesPerRank(ranks);
  place.memory_of = ranks == 1 ? "this host" : absl::StrCat("this host over ", ranks, " ranks");
  SetDeclaredMemory(spec, &place);
  return place;
}

std::string TellFasterPrecision(const v1::JobSpec& spec, const plan::RankPlace& place,
                                absl::string_view where) {
  const auto faster = plan::FindFasterPrecision(spec, place.profile, place.threads);
  if (!faster.has_value()) return "";
  const auto* name = v1::Precision_descriptor()->FindValueByNumber(faster->precision);
  return absl::StrFormat("train.precision: %s would be about %.1f times as fast on %s",
                         EnumYamlName(*name), faster->ratio, where);
}

}  // namespace milepost::client
