// How queues are shown.
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "client/cli/table.h"
#include "common/spec/to_yaml.h"
#include "milepost/v1/queue.pb.h"

namespace milepost::client {
namespace {

struct KindOfQueue {
  v1::SlotQuota quota;
  v1::QueueUsage usage;
};

// Kinds of which it has a quota or jobs.
std::map<v1::DeviceKind, KindOfQueue> KindsOf(const v1::Queue& queue) {
  std::map<v1::DeviceKind, KindOfQueue> kinds;
  for (const v1::SlotQuota& quota : queue.quotas()) kinds[quota.device()].quota = quota;
  for (const v1::QueueUsage& usage : queue.usage()) kinds[usage.device()].usage = usage;
  return kinds;
}

std::string KindName(v1::DeviceKind device) {
  const auto* value = v1::DeviceKind_descriptor()->FindValueByNumber(device);
  return value == nullptr || device == v1::DEVICE_KIND_UNSPECIFIED ? "-" : EnumYamlName(*value);
}

}  // namespace

// A row for each kind of device.
std::string RenderQueues(const std::vector<v1::Queue>& queues, OutputFormat format) {
  if (format == OutputFormat::kName) {
    std::string names;
    for (const v1::Queue& queue : queues) absl::StrAppend(&names, queue.name(), "\n");
    return names;
  }
  if (format == OutputFormat::kJson || format == OutputFormat::kYaml) {
    return RenderMessages(queues, format);
  }
  Table table({"NAME", "WEIGHT", "DEVICE", "USED", "GUARANTEED", "LIMIT", "RUNNING", "WAITING"});
  for (const v1::Queue& queue : queues) {
    std::map<v1::DeviceKind, KindOfQueue> kinds = KindsOf(queue);
    if (kinds.empty()) kinds[v1::DEVICE_KIND_UNSPECIFIED];
    for (const auto& [device, kind] : kinds) {
      table.Add({queue.name(), absl::StrFormat("%g", queue.weight()), KindName(device),
                 absl::StrCat(kind.usage.used_slots()), absl::StrCat(kind.quota.guaranteed()),
                 kind.quota.has_limit() ? absl::StrCat(kind.quota.limit()) : "none",
                 absl::StrCat(kind.usage.running_jobs()), absl::StrCat(kind.usage.waiting_jobs())});
    }
  }
  return table.ToString();
}

std::string RenderQueue(const v1::Queue& queue, OutputFormat format) {
  if (format == OutputFormat::kJson || format == OutputFormat::kYaml) {
    return RenderMessage(queue, format);
  }
  std::string text = RenderQueues({queue}, format);
  if (format != OutputFormat::kName && !queue.description().empty()) {
    absl::StrAppend(&text, Printable(queue.description()), "\n");
  }
  return text;
}

}  // namespace milepost::client
