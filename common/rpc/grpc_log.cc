#include "common/rpc/grpc_log.h"

#include <grpc/support/log.h>
#include <spdlog/spdlog.h>

#include <atomic>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "common/steady_time.h"

namespace milepost {
namespace {

constexpr absl::Duration kWarnEvery = absl::Minutes(1);

void Forward(gpr_log_func_args* args) {
  spdlog::debug("grpc: {}:{}: {}", args->file, args->line, args->message);
}

void ForwardAndWarn(gpr_log_func_args* args) {
  static std::atomic<int64_t> quiet_until = 0;  // ToUnixMillis of SteadyNow
  Forward(args);
  if (!absl::StrContains(args->message, "certificate verify failed")) return;
  const absl::Time now = SteadyNow();
  int64_t until = quiet_until;
  if (absl::ToUnixMillis(now) < until) return;
  if (!quiet_until.compare_exchange_strong(until, absl::ToUnixMillis(now + kWarnEvery))) return;
  spdlog::warn(
      "a certificate that was shown here is refused: it is not of an authority in this side's "
      "ca.crt, or has ended. Whoever showed it, most likely a worker, cannot connect");
}

}  // namespace

void ForwardGrpcLog() { gpr_set_log_function(Forward); }

void ForwardGrpcLogOfServer() { gpr_set_log_function(ForwardAndWarn); }

}  // namespace milepost
