#include "worker/memory_state/snapshot_claims.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxGathered = 64 << 20;
// Of a folder, in case something else fills it.
constexpr size_t kMaxFiles = 4096;

struct NamedFile {
  int64_t generation = 0;
  int64_t rank = 0;
  std::string path;
};

// "g3-r7-own.state"; nullopt: not a snapshot's name.
std::optional<NamedFile> ParseName(const fs::path& path) {
  const std::string name = path.filename().string();
  absl::string_view rest = name;
  if (!absl::ConsumePrefix(&rest, "g") || !absl::ConsumeSuffix(&rest, kSnapshotSuffix))
    return std::nullopt;
  const size_t dash = rest.find("-r");
  const size_t last = rest.find('-', dash == absl::string_view::npos ? dash : dash + 2);
  if (dash == absl::string_view::npos || last == absl::string_view::npos) return std::nullopt;
  NamedFile file = {.path = path.string()};
  if (!absl::SimpleAtoi(rest.substr(0, dash), &file.generation)) return std::nullopt;
  if (!absl::SimpleAtoi(rest.substr(dash + 2, last - dash - 2), &file.rank)) return std::nullopt;
  return file;
}

// Of generations before this one, in the order of their names.
std::vector<NamedFile> OlderFiles(const std::string& folder, int64_t generation) {
  std::vector<NamedFile> files;
  if (folder.empty()) return files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::optional<NamedFile> file = ParseName(entry->path());
    if (file.has_value() && file->generation < generation && files.size() < kMaxFiles) {
      files.push_back(*std::move(file));
    }
  }
  std::sort(files.begin(), files.end(),
            [](const NamedFile& a, const NamedFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace

absl::StatusOr<std::vector<FoundSnapshot>> ClaimSnapshots(
    const std::string& folder, int64_t generation,
    absl::FunctionRef<bool(const FoundSnapshot&)> accepts, comm::Communicator& communicator) {
  const std::vector<NamedFile> files = OlderFiles(folder, generation);
  std::vector<FoundSnapshot> found;
  const auto add = [&](const std::string& path) {
    absl::StatusOr<FoundSnapshot> opened = OpenSnapshot(path);
    if (absl::IsDataLoss(opened.status())) {
      spdlog::warn("{}", std::string(opened.status().message()));
    }
    if (opened.ok() && accepts(*opened)) found.push_back(*std::move(opened));
  };
  // First what this rank had itself, so that ranks share what their host has.
  for (const NamedFile& file : files) {
    if (file.rank == communicator.rank()) add(file.path);
  }
  MP_RETURN_IF_ERROR(communicator.Barrier());
  for (const NamedFile& file : files) {
    if (file.rank != communicator.rank()) add(file.path);
  }
  return found;
}

bool FitsLayout(const FoundSnapshot& found, const state::StateLayout& layout) {
  uint64_t bytes = 0;
  for (const v1::MemoryInterval& entry : found.snapshot.intervals()) {
    const state::Interval interval = {entry.tensor(), entry.begin(), entry.end()};
    if (!layout.CheckInterval(interval).ok()) return false;
    bytes += static_cast<uint64_t>(layout.BytesOf(interval));
  }
  return bytes == found.bytes;
}

v1::MemoryHoldings HoldingsOf(const std::vector<FoundSnapshot>& found) {
  v1::MemoryHoldings holdings;
  for (const FoundSnapshot& snapshot : found) *holdings.add_snapshots() = snapshot.snapshot;
  return holdings;
}

absl::StatusOr<std::vector<v1::MemoryHoldings>> GatherHoldings(const v1::MemoryHoldings& own,
                                                               comm::Communicator& communicator) {
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      GatherBytes(own.SerializeAsString(), communicator));
  std::vector<v1::MemoryHoldings> holdings(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!holdings[rank].ParseFromString(all[rank])) {
      return absl::InternalError(absl::StrCat("rank ", rank, " told nonsense of its memory"));
    }
  }
  return holdings;
}

void ForgetState(const std::string& folder, int64_t generation) {
  for (const NamedFile& file : OlderFiles(folder, generation)) {
    std::error_code ignored;
    fs::remove(file.path, ignored);
  }
}

absl::StatusOr<std::vector<std::string>> GatherBytes(const std::string& bytes,
                                                     comm::Communicator& communicator) {
  auto longest = static_cast<int64_t>(bytes.size());
  MP_RETURN_IF_ERROR(communicator.AllReduce(absl::MakeSpan(&longest, 1), comm::ReduceOp::kMax));
  if (longest > kMaxGathered) {
    return absl::InternalError(
        absl::StrCat("a rank has ", longest, " bytes to tell of its memory"));
  }
  const size_t world = static_cast<size_t>(communicator.world());
  // Of each rank its length, then its bytes.
  const size_t stride = sizeof(uint64_t) + static_cast<size_t>(longest + 7) / 8 * 8;
  std::vector<char> all(stride * world);
  char* own = all.data() + stride * static_cast<size_t>(communicator.rank());
  const uint64_t size = bytes.size();
  std::memcpy(own, &size, sizeof size);
  std::memcpy(own + sizeof size, bytes.data(), bytes.size());
  MP_RETURN_IF_ERROR(communicator.AllGather(all.data(), all.size()));
  std::vector<std::string> result;
  for (size_t rank = 0; rank < world; ++rank) {
    const char* begin = all.data() + stride * rank;
    uint64_t length = 0;
    std::memcpy(&length, begin, sizeof length);
    if (length > static_cast<uint64_t>(longest)) {
      return absl::InternalError(absl::StrCat("rank ", rank, " sent nonsense"));
    }
    result.emplace_back(begin + sizeof length, length);
  }
  return result;
}

}  // namespace milepost::worker
