#include "worker/agent/gpu_check.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "common/subprocess.h"

namespace milepost::worker {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

}  // namespace

absl::Status CheckGpu(const std::string& binary, const std::string& uuid) {
  SpawnOptions spawn;
  spawn.argv = {binary, "check"};
  spawn.env.emplace_back("CUDA_VISIBLE_DEVICES", uuid);
  MP_ASSIGN_OR_RETURN(Subprocess process, Subprocess::Spawn(std::move(spawn)));
  const absl::StatusOr<ExitResult> end = process.Wait(Clock::Real()->Now() + kPatience);
  if (!end.ok()) {
    Subprocess::LeaveBehind(std::move(process));
    return Annotate(end.status(), absl::StrCat(binary, " check"));
  }
  if (end->success()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(binary, " check: ", end->ToString()));
}

}  // namespace milepost::worker
