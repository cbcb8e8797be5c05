#include "client/cli/worker_view.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"
#include "common/xid.h"

namespace milepost::client {
namespace {

std::string DeviceText(const v1::Slot& slot) {
  if (slot.device() != v1::DEVICE_KIND_CUDA) return "cpu";
  return slot.model().empty() ? "cuda" : slot.model();
}

std::string Cores(int count) { return absl::StrCat(count, count == 1 ? " core" : " cores"); }

void AddUse(const v1::DeviceFacts& facts, std::vector<std::string>* parts) {
  if (facts.has_utilization_percent()) {
    parts->push_back(absl::StrCat(facts.utilization_percent(), "% busy"));
  }
  if (facts.has_memory_used_bytes()) {
    parts->push_back(absl::StrCat(HumanBytes(facts.memory_used_bytes()), " used"));
  }
  if (facts.has_power_watts()) {
    const std::string limit =
        facts.has_power_limit_watts() ? absl::StrFormat(" of %.0f", facts.power_limit_watts()) : "";
    parts->push_back(absl::StrFormat("%.0f%s W", facts.power_watts(), limit));
  }
  if (facts.has_temperature_celsius()) {
    parts->push_back(absl::StrCat(facts.temperature_celsius(), " °C"));
  }
  if (facts.has_sm_clock_mhz()) {
    const std::string most =
        facts.has_most_sm_clock_mhz() ? absl::StrCat(" of ", facts.most_sm_clock_mhz()) : "";
    parts->push_back(absl::StrCat(facts.sm_clock_mhz(), most, " MHz"));
  }
  if (facts.throttling_size() > 0) {
    parts->push_back(absl::StrCat("held down by ", absl::StrJoin(facts.throttling(), " and ")));
  }
}

// What goes in and out in a second.
std::string InAndOut(const char* name, int64_t in, int64_t out) {
  return absl::StrCat(name, " ", HumanBytes(in), "/s in, ", HumanBytes(out), "/s out");
}

void AddHealth(const v1::DeviceFacts& facts, absl::Time now, std::vector<std::string>* parts) {
  if (facts.has_pcie_read_bytes_per_second() && facts.has_pcie_write_bytes_per_second()) {
    parts->push_back(
        InAndOut("PCIe", facts.pcie_read_bytes_per_second(), facts.pcie_write_bytes_per_second()));
  }
  if (facts.nvlinks() > 0) {
    parts->push_back(absl::StrCat(facts.nvlinks_active(), " of ", facts.nvlinks(), " NVLinks up"));
  }
  if (facts.has_nvlink_transmit_bytes_per_second() && facts.has_nvlink_receive_bytes_per_second()) {
    parts->push_back(InAndOut("NVLink", facts.nvlink_receive_bytes_per_second(),
                              facts.nvlink_transmit_bytes_per_second()));
  }
  if (facts.has_ecc_errors() && facts.ecc_errors() > 0) {
    parts->push_back(absl::StrCat(facts.ecc_errors(), " uncorrected memory errors"));
  }
  if (facts.last_xid() != 0) {
    parts->push_back(absl::StrCat("XID ", XidText(facts.last_xid()), " (",
                                  AgeText(facts.last_xid_time(), now), " ago)"));
  }
}

}  // namespace

std::string DevicesText(const v1::Worker& worker) {
  std::set<std::string> names;
  for (const v1::Slot& slot : worker.slots()) names.insert(DeviceText(slot));
  return names.empty() ? "-" : absl::StrJoin(names, ", ");
}

std::string SlotMemoryText(const v1::Worker& worker) {
  std::set<int64_t> bytes;
  for (const v1::Slot& slot : worker.slots()) {
    if (slot.memory_bytes() > 0) bytes.insert(slot.memory_bytes());
  }
  if (bytes.empty()) return "-";
  const std::string least = HumanBytes(*bytes.begin()), most = HumanBytes(*bytes.rbegin());
  return least == most ? least : absl::StrCat(least, " to ", most);
}

std::string SlotText(const v1::Slot& slot) {
  std::vector<std::string> parts = {DeviceText(slot)};
  if (slot.memory_bytes() > 0) parts.push_back(HumanBytes(slot.memory_bytes()));
  if (slot.compute_capability() > 0) {
    parts.push_back(absl::StrFormat("capability %d.%d", slot.compute_capability() / 10,
                                    slot.compute_capability() % 10));
  }
  const std::string node =
      slot.has_numa_node() ? absl::StrCat(" of NUMA node ", slot.numa_node()) : "";
  parts.push_back(Cores(slot.cores()) + node);
  return absl::StrJoin(parts, ", ");
}

std::string FactsText(const v1::DeviceFacts& facts, absl::Time now) {
  std::vector<std::string> parts;
  if (!facts.problem().empty()) parts.push_back(absl::StrCat("out of order: ", facts.problem()));
  AddUse(facts, &parts);
  AddHealth(facts, now, &parts);
  if (parts.empty()) parts.emplace_back("tells nothing");
  return absl::StrCat(absl::StrJoin(parts, ", "), "; ", AgeText(facts.time(), now), " ago");
}

}  // namespace milepost::client
