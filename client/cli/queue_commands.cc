// milepost queue ...
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/commands.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

// The quota of a kind of device, made where there is none.
v1::SlotQuota* QuotaOf(v1::DeviceKind device, v1::Queue* queue) {
  for (v1::SlotQuota& quota : *queue->mutable_quotas()) {
    if (quota.device() == device) return &quota;
  }
  v1::SlotQuota* quota = queue->add_quotas();
  quota->set_device(device);
  return quota;
}

struct KindCount {
  v1::DeviceKind device = v1::DEVICE_KIND_CPU;
  std::optional<int> count;  // none: "none"
};

// "cuda=8"
absl::StatusOr<KindCount> ParseKindCount(const std::string& flag, const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '=');
  KindCount parsed;
  int count = 0;
  const bool kind = parts[0] == "cpu" || parts[0] == "cuda";
  const bool none = parts.size() == 2 && parts[1] == "none";
  if (!kind || parts.size() != 2 || (!none && !absl::SimpleAtoi(parts[1], &count))) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": expected KIND=SLOTS such as cuda=8, not '", text, "'"));
  }
  parsed.device = parts[0] == "cpu" ? v1::DEVICE_KIND_CPU : v1::DEVICE_KIND_CUDA;
  if (!none) parsed.count = count;
  return parsed;
}

absl::Status Apply(const QueueOptions& options, v1::Queue* queue) {
  if (options.weight) queue->set_weight(*options.weight);
  if (options.description) queue->set_description(*options.description);
  for (const std::string& text : options.guaranteed) {
    MP_ASSIGN_OR_RETURN(const KindCount parsed, ParseKindCount("--guaranteed", text));
    QuotaOf(parsed.device, queue)->set_guaranteed(parsed.count.value_or(0));
  }
  for (const std::string& text : options.limits) {
    MP_ASSIGN_OR_RETURN(const KindCount parsed, ParseKindCount("--limit", text));
    v1::SlotQuota* quota = QuotaOf(parsed.device, queue);
    quota->clear_limit();
    if (parsed.count) quota->set_limit(*parsed.count);
  }
  return absl::OkStatus();
}

int PrintQueue(const GlobalOptions& global, const absl::StatusOr<v1::Queue>& queue) {
  if (!queue.ok()) return Fail(queue.status());
  Print(RenderQueue(*queue, global.output));
  return kExitOk;
}

}  // namespace

int QueueListCommand(const GlobalOptions& global, int limit) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const auto queues = access->queues().List(limit);
  if (!queues.ok()) return Fail(queues.status());
  Print(RenderQueues(*queues, global.output));
  return kExitOk;
}

int QueueDescribeCommand(const GlobalOptions& global, const std::string& name) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  return PrintQueue(global, access->queues().Get(FullName("queues", name)));
}

int QueueCreateCommand(const GlobalOptions& global, const QueueOptions& options) {
  v1::CreateQueueRequest request;
  request.set_queue_id(std::string(absl::StripPrefix(options.name, "queues/")));
  if (absl::Status status = Apply(options, request.mutable_queue()); !status.ok()) {
    return Fail(status);
  }
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  return PrintQueue(global, access->queues().Create(request));
}

int QueueUpdateCommand(const GlobalOptions& global, const QueueOptions& options) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  // The quotas are one field: what is not changed of them is sent back, with the etag that says
  // that nobody else has changed them meanwhile.
  auto queue = access->queues().Get(FullName("queues", options.name));
  if (!queue.ok()) return Fail(queue.status());
  if (absl::Status status = Apply(options, &*queue); !status.ok()) return Fail(status);
  v1::UpdateQueueRequest request;
  *request.mutable_queue() = *queue;
  return PrintQueue(global, access->queues().Update(request));
}

int QueueDeleteCommand(const GlobalOptions& global, const std::string& name) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  const std::string full = FullName("queues", name);
  if (absl::Status status = access->queues().Delete(full); !status.ok()) return Fail(status);
  Print(full + "\n");
  Note(absl::StrCat("deleted ", full));
  return kExitOk;
}

}  // namespace milepost::client
