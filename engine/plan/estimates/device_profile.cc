#include "engine/plan/estimates/device_profile.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/nearest.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace milepost::plan {
namespace {

using Json = nlohmann::ordered_json;

// What a device is on paper, and what part of it a large product reaches.
struct Paper {
  const char* name;
  double fp32;  // dense FLOP/s outside the tensor cores
  double half;  // dense FLOP/s, bf16 and fp16 with fp32 sums
  double half_part;
  double fp8;  // as `half`, of 8 bits; 0: it has none
  double fp8_part;
  int64_t memory_bytes;
  double memory_bandwidth;
  double host_bandwidth;     // one way
  double network_bandwidth;  // one way, a rank's share of the host's
  double host_device;        // one way: PCIe x16
  double host_memory;        // a rank's share of the host's
};

// NVIDIA's data sheets: HGX B200, H200 SXM, H100 SXM5 80 GB, A100 SXM4 80 GB and the Ada
// architecture's white paper. Memory as the driver reports it. Networks: the adapters of a DGX (400
// Gb/s a GPU; A100 200 Gb/s) and 10 Gb/s for a workstation, whose GPUs talk through PCIe 4.0 x16. A
// DGX's host memory has 16 channels for eight GPUs (B200: DDR5-5600, DDR5-4800; A100: DDR4-3200), a
// workstation's two. The parts that the fastest of many large products reached: an H200 here (790
// TFLOP/s in bf16, of 8192 on random data), the others and 8 bits by stas00/ml-engineering's
// mamf-finder (A100 267.9 TFLOP/s, H100 792.1, B200 1745 and 3432, H200 1453 in 8 bits).
constexpr Paper kPapers[] = {
    {"b200", 75e12, 2250e12, 0.776, 4500e12, 0.763, int64_t{183359} << 20, 7.7e12, 900e9, 50e9,
     63e9, 89.6e9},
    {"h200", 66.9e12, 989.4e12, 0.798, 1978.9e12, 0.734, int64_t{143771} << 20, 4.8e12, 450e9, 50e9,
     63e9, 76.8e9},
    {"h100", 66.9e12, 989.4e12, 0.801, 1978.9e12, 0.734, int64_t{81559} << 20, 3.35e12, 450e9, 50e9,
     63e9, 76.8e9},
    {"a100", 19.5e12, 311.9e12, 0.859, 0, 0, int64_t{81920} << 20, 2.039e12, 300e9, 25e9, 31.5e9,
     51.2e9},
    {"rtx4090", 82.6e12, 165.2e12, 0.798, 330.3e12, 0.734, int64_t{24564} << 20, 1.008e12, 32e9,
     1.25e9, 31.5e9, 76.8e9},
};

constexpr double kCopyPart = 4.3 / 4.8;  // of an H200 in a copy
constexpr double kLinkPart = 0.8;        // collectives' of a link
constexpr double kAttentionPart = 0.67;  // fused attention's of a product's rate, at its best
// NCCL's kernels take multiprocessors from the others: about 20 of an H100's 132 are what they need
// for a link's whole bandwidth (DeepSeek-AI, "DeepSeek-V3", 2024, 3.2).
constexpr double kOverlap = 1 - 2 * 20.0 / 132;
constexpr double kGpuOpSeconds = 4e-6;  // a kernel's launch, and its last wave
constexpr double kGpuCollectiveSeconds = 8e-6;
constexpr int64_t kReserve = int64_t{1536} << 20;

DeviceProfile FromPaper(const Paper& paper) {
  DeviceProfile profile;
  profile.name = paper.name;
  const bool measured = profile.name == "h200";
  profile.source = measured ? "rates measured on an H200, links 80% of the data sheet"
                            : "data sheet, at the parts of it that products and copies reach";
  const double half = kStepProductPart * paper.half_part;
  profile.matmul["F32"] = {half * paper.fp32, paper.fp32};
  profile.matmul["BF16"] = {half * paper.half, paper.half};
  profile.matmul["F16"] = profile.matmul["BF16"];
  if (paper.fp8 > 0)
    profile.matmul["F8_E4M3"] = {kStepProductPart * paper.fp8_part * paper.fp8, paper.fp8};
  profile.attention_fraction = kAttentionPart;
  profile.overlap = kOverlap;
  profile.memory_bytes = paper.memory_bytes;
  profile.memory_bandwidth = kCopyPart * paper.memory_bandwidth;
  profile.host_bandwidth = kLinkPart * paper.host_bandwidth;
  profile.network_bandwidth = kLinkPart * paper.network_bandwidth;
  profile.ranks_per_host = 8;
  profile.host_device_bandwidth = kLinkPart * paper.host_device;
  profile.host_memory_bandwidth = kLinkPart * paper.host_memory;
  profile.op_seconds = kGpuOpSeconds;
  profile.collective_seconds = kGpuCollectiveSeconds;
  return profile;
}

// A server's core with AVX-512 and its bf16 products.
DeviceProfile Cpu() {
  DeviceProfile profile;
  profile.name = "cpu";
  profile.source = "one core of an AMD EPYC, as bench/kernels_cpu and bench device measured two";
  profile.matmul["F32"] = {225e9, 225e9};
  profile.matmul["BF16"] = {440e9, 440e9};
  profile.matmul["F16"] = profile.matmul["F32"];
  profile.attention_fraction = 0.6;
  profile.memory_bandwidth = 20e9;
  profile.host_bandwidth = 2e9;
  profile.network_bandwidth = 1e9;
  profile.op_seconds = 5e-6;
  profile.collective_seconds = 10e-6;
  profile.overlap = 0;
  profile.threads = 1;
  return profile;
}

absl::Status Bad(absl::string_view filename, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(filename, ": ", what));
}

// Reads one profile, keeping the first problem.
class Reader {
 public:
  Reader(const Json& json, absl::string_view filename) : json_(json), filename_(filename) {}

  absl::StatusOr<DeviceProfile> Read() && {
    DeviceProfile p;
    Text("name", &p.name);
    if (p.name.empty()) Problem("name", "required: what to call this device");
    Text("source", &p.source);
    Matmul(&p);
    Number("attention_fraction", 1e-3, 1, &p.attention_fraction);
    double bytes = 0;
    Number("memory_bytes", 0, 1e18, &bytes);
    p.memory_bytes = static_cast<int64_t>(bytes);
    Number("memory_bandwidth", 1, 1e18, &p.memory_bandwidth);
    if (p.memory_bandwidth == 0) Problem("memory_bandwidth", "required: bytes per second");
    Number("host_bandwidth", 0, 1e18, &p.host_bandwidth);
    Number("network_bandwidth", 0, 1e18, &p.network_bandwidth);
    double ranks = 0;
    Number("ranks_per_host", 0, 4096, &ranks);
    p.ranks_per_host = static_cast<int>(ranks);
    Number("host_device_bandwidth", 0, 1e18, &p.host_device_bandwidth);
    Number("host_memory_bandwidth", 0, 1e18, &p.host_memory_bandwidth);
    Number("disk_read_bandwidth", 0, 1e18, &p.disk_read_bandwidth);
    Number("disk_write_bandwidth", 0, 1e18, &p.disk_write_bandwidth);
    Number("op_seconds", 0, 1, &p.op_seconds);
    Number("collective_seconds", 0, 1, &p.collective_seconds);
    Number("overlap", 0, 1, &p.overlap);
    double threads = 0;
    Number("threads", 0, 65536, &threads);
    p.threads = static_cast<int>(threads);
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      Problem(key.substr(0, 40), absl::StrCat("unknown field", DidYouMean(key, known_)));
    }
    if (!status_.ok()) return status_;
    return p;
  }

 private:
  void Problem(absl::string_view field, absl::string_view what) {
    if (status_.ok()) status_ = Bad(filename_, absl::StrCat(field, ": ", what));
  }

  const Json* Find(const char* field) {
    known_.emplace_back(field);
    const auto found = json_.find(field);
    return found == json_.end() ? nullptr : &*found;
  }

  void Text(const char* field, std::string* text) {
    const Json* value = Find(field);
    if (value == nullptr) return;
    if (!value->is_string() || value->get_ref<const std::string&>().size() > 256) {
      return Problem(field, "expected text of at most 256 characters");
    }
    *text = value->get<std::string>();
  }

  std::optional<double> InRange(absl::string_view field, const Json& value, double low,
                                double high) {
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (number >= low && number <= high) return number;
    Problem(field, absl::StrCat("expected a number from ", low, " to ", high));
    return std::nullopt;
  }

  void Number(const char* field, double low, double high, double* number) {
    const Json* value = Find(field);
    if (value == nullptr) return;
    if (const auto read = InRange(field, *value, low, high)) *number = *read;
  }

  void Matmul(DeviceProfile* profile) {
    const Json* rates = Find("matmul");
    if (rates == nullptr || !rates->is_object() || !rates->contains("F32") || rates->size() > 16) {
      return Problem("matmul", "expected {\"F32\": {\"achieved\": FLOP/s, \"peak\": FLOP/s}, ...}");
    }
    for (const auto& [dtype, of_dtype] : rates->items()) {
      const Json& rate = of_dtype;
      const std::string field = absl::StrCat("matmul.", dtype.substr(0, 16));
      if (!rate.is_object() || !rate.contains("achieved")) {
        return Problem(field, "expected {\"achieved\": FLOP/s, \"peak\": FLOP/s}");
      }
      const auto number = [&](const char* name, double low, double high, double missing) {
        return rate.contains(name) ? InRange(absl::StrCat(field, ".", name), rate[name], low, high)
                                   : std::optional<double>(missing);
      };
      const auto achieved = number("achieved", 1, 1e21, 0);
      const auto peak = number("peak", 1, 1e21, achieved.value_or(0));
      const auto attention = number("attention", 1e-3, 1, 0);
      const auto product_half = number("product_half", 0, 1e6, 0);
      const auto attention_half = number("attention_half", 0, 1e6, 0);
      const auto accumulate_half = number("accumulate_half", 0, 1e6, 0);
      if (!status_.ok()) return;
      profile->matmul[dtype] = {*achieved,     *peak,           *attention,
                                *product_half, *attention_half, *accumulate_half};
    }
  }

  const Json& json_;
  const std::string filename_;
  std::vector<std::string> known_;
  absl::Status status_;
};

}  // namespace

const std::vector<std::string>& BuiltInProfileNames() {
  static const auto* const names = [] {
    auto* list = new std::vector<std::string>{"cpu"};
    for (const Paper& paper : kPapers) list->emplace_back(paper.name);
    std::sort(list->begin(), list->end());
    return list;
  }();
  return *names;
}

absl::StatusOr<DeviceProfile> BuiltInProfile(absl::string_view name) {
  if (name == "cpu") return Cpu();
  for (const Paper& paper : kPapers) {
    if (name == paper.name) return FromPaper(paper);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no device profile '", name.substr(0, 40), "'",
      DidYouMean(name, BuiltInProfileNames()), "; there are ",
      absl::StrJoin(BuiltInProfileNames(), ", "), ", or a file that `milepost bench device` made"));
}

absl::StatusOr<DeviceProfile> ParseProfile(absl::string_view json, absl::string_view filename) {
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded() || !parsed.is_object()) {
    return Bad(filename, "not a device profile: expected one JSON object");
  }
  return Reader(parsed, filename).Read();
}

std::string ProfileJson(const DeviceProfile& profile) {
  Json matmul = Json::object();
  for (const auto& [dtype, rate] : profile.matmul) {
    matmul[dtype] = {{"achieved", rate.achieved}, {"peak", rate.peak}};
    const std::pair<const char*, double> known[] = {{"attention", rate.attention},
                                                    {"product_half", rate.product_half},
                                                    {"attention_half", rate.attention_half},
                                                    {"accumulate_half", rate.accumulate_half}};
    for (const auto& [name, value] : known) {
      if (value > 0) matmul[dtype][name] = value;
    }
  }
  const Json json = {{"name", profile.name},
                     {"source", profile.source},
                     {"matmul", matmul},
                     {"attention_fraction", profile.attention_fraction},
                     {"memory_bytes", profile.memory_bytes},
                     {"memory_bandwidth", profile.memory_bandwidth},
                     {"host_bandwidth", profile.host_bandwidth},
                     {"network_bandwidth", profile.network_bandwidth},
                     {"ranks_per_host", profile.ranks_per_host},
                     {"host_device_bandwidth", profile.host_device_bandwidth},
                     {"host_memory_bandwidth", profile.host_memory_bandwidth},
                     {"disk_read_bandwidth", profile.disk_read_bandwidth},
                     {"disk_write_bandwidth", profile.disk_write_bandwidth},
                     {"op_seconds", profile.op_seconds},
                     {"collective_seconds", profile.collective_seconds},
                     {"overlap", profile.overlap},
                     {"threads", profile.threads}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

DeviceProfile ForThreads(DeviceProfile profile, int threads) {
  if (profile.threads == 0 || threads < 1) return profile;
  const double factor = static_cast<double>(threads) / profile.threads;
  for (auto& [dtype, rate] : profile.matmul) {
    rate.achieved *= factor;
    rate.peak *= factor;
  }
  profile.memory_bandwidth *= factor;
  profile.threads = threads;
  return profile;
}

DeviceProfile OnHosts(DeviceProfile profile, int ranks_per_host, double gigabits) {
  if (ranks_per_host > 0) profile.ranks_per_host = ranks_per_host;
  if (gigabits > 0) {
    const int sharing = std::max(1, profile.ranks_per_host);
    profile.network_bandwidth = kLinkPart * gigabits * 1e9 / 8 / sharing;
  }
  return profile;
}

MatmulRate RateOf(const DeviceProfile& profile, DType dtype) {
  auto rate = profile.matmul.find(Name(dtype));
  if (rate == profile.matmul.end() && ByteSize(dtype) == 1) {
    rate = profile.matmul.find(Name(DType::kBf16));
  }
  if (rate == profile.matmul.end()) rate = profile.matmul.find("F32");
  return rate == profile.matmul.end() ? MatmulRate{1, 1} : rate->second;
}

int64_t UsableBytes(const DeviceProfile& profile) {
  return std::max<int64_t>(0, profile.memory_bytes - kReserve);
}

}  // namespace milepost::plan
