#include "worker/memory_state/memory_state.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "worker/memory_state/transfer_plan.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMoveBytes = 16 << 20;
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

// What a snapshot must be of.
struct Wanted {
  const state::StateLayout& layout;
  uint64_t tensors = 0;
  std::string job;
  v1::TrainerState state;  // seed, digest
};

bool IsOf(const FoundSnapshot& found, const Wanted& wanted) {
  const v1::MemorySnapshot& snapshot = found.snapshot;
  if (snapshot.tensors() != wanted.tensors || snapshot.job() != wanted.job) return false;
  if (snapshot.state().seed() != wanted.state.seed() ||
      snapshot.state().spec_digest() != wanted.state.spec_digest()) {
    return false;
  }
  uint64_t bytes = 0;
  for (const v1::MemoryInterval& entry : snapshot.intervals()) {
    const state::Interval interval = {entry.tensor(), entry.begin(), entry.end()};
    if (!wanted.layout.CheckInterval(interval).ok()) return false;
    bytes += static_cast<uint64_t>(wanted.layout.BytesOf(interval));
  }
  return bytes == found.bytes;
}

// The snapshots that this rank gives from; others on the host have claimed the rest.
class Claims {
 public:
  explicit Claims(Wanted wanted) : wanted_(std::move(wanted)) {}

  void Add(const std::string& path) {
    absl::StatusOr<FoundSnapshot> found = OpenSnapshot(path);
    if (absl::IsDataLoss(found.status())) {
      spdlog::warn("{}", std::string(found.status().message()));
    }
    if (found.ok() && IsOf(*found, wanted_)) {
      found_.push_back(*std::move(found));
    }
  }

  const std::vector<FoundSnapshot>& found() const { return found_; }

 private:
  const Wanted wanted_;
  std::vector<FoundSnapshot> found_;
};

v1::MemoryHoldings HoldingsOf(const Claims& claims,
                              const std::vector<runtime::StateInterval>& targets) {
  v1::MemoryHoldings holdings;
  for (const FoundSnapshot& found : claims.found()) *holdings.add_snapshots() = found.snapshot;
  for (const runtime::StateInterval& target : targets) {
    v1::MemoryInterval* interval = holdings.add_targets();
    interval->set_tensor(target.tensor);
    interval->set_begin(target.begin);
    interval->set_end(target.end);
  }
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

// Moves what this rank gives and takes.
absl::Status Exchange(absl::Span<const Move> moves, const Claims& claims,
                      const std::vector<runtime::StateInterval>& targets,
                      comm::Communicator& communicator) {
  const int rank = communicator.rank();
  const auto source = [&](const Move& move) {
    return claims.found()[move.snapshot].data + move.from_offset;
  };
  const auto target = [&](const Move& move) { return targets[move.target].data + move.to_offset; };
  for (const Move& move : moves) {
    if (move.from == rank && move.to == rank) std::memcpy(target(move), source(move), move.bytes);
  }
  for (const std::vector<Move>& round : Rounds(moves, kMoveBytes)) {
    std::vector<comm::Communicator::Transfer> transfers(communicator.world());
    for (const Move& move : round) {
      if (move.from == rank) {
        transfers[move.to].send = source(move);
        transfers[move.to].send_bytes = static_cast<size_t>(move.bytes);
      }
      if (move.to == rank) {
        transfers[move.from].receive = target(move);
        transfers[move.from].receive_bytes = static_cast<size_t>(move.bytes);
      }
    }
    for (int peer = 0; peer < communicator.world(); ++peer) transfers[peer].peer = peer;
    std::erase_if(transfers, [](const comm::Communicator::Transfer& transfer) {
      return transfer.send_bytes == 0 && transfer.receive_bytes == 0;
    });
    MP_RETURN_IF_ERROR(communicator.Exchange(transfers));
  }
  return absl::OkStatus();
}

v1::TrainerState StateOf(absl::Span<const v1::MemoryHoldings> holdings, Moment moment) {
  for (const v1::MemoryHoldings& holding : holdings) {
    for (const v1::MemorySnapshot& snapshot : holding.snapshots()) {
      if (MomentOf(snapshot) == moment) return snapshot.state();
    }
  }
  MP_CHECK(false) << "no snapshot of step " << moment.step;
  return {};
}

}  // namespace

std::vector<state::Interval> IntervalsOf(const std::vector<runtime::StateInterval>& intervals) {
  std::vector<state::Interval> result;
  result.reserve(intervals.size());
  for (const runtime::StateInterval& i : intervals) result.push_back({i.tensor, i.begin, i.end});
  return result;
}

absl::Status KeepState(const std::string& folder, const SnapshotId& id,
                       runtime::TrainingSession& session) {
  if (folder.empty()) return absl::FailedPreconditionError("there is no folder in memory");
  if (session.state_parts() != 1) {
    return absl::FailedPreconditionError("optimizer state is on disk");
  }
  if (!session.state_is_whole()) {
    return absl::FailedPreconditionError("its state was being changed when the step failed");
  }
  MP_RETURN_IF_ERROR(session.FetchState());
  const std::vector<runtime::StateInterval> held = session.RestoreTargets();
  MP_ASSIGN_OR_RETURN(auto file,
                      SnapshotFile::Create(folder, id, session.state_tensors(), IntervalsOf(held)));
  file->Begin();
  for (size_t i = 0; i < held.size(); ++i) {
    std::memcpy(file->data(i), held[i].data, file->bytes(i));
  }
  file->Commit(session.trainer_state());
  return absl::OkStatus();
}

absl::StatusOr<std::optional<v1::TrainerState>> TakeUpState(const std::string& folder,
                                                            const std::string& job,
                                                            int64_t generation, int64_t least_step,
                                                            runtime::TrainingSession& session,
                                                            comm::Communicator& communicator) {
  if (session.state_parts() != 1) return std::optional<v1::TrainerState>();  // on disk
  const std::vector<v1::TensorInfo>& tensors = session.state_tensors();
  MP_ASSIGN_OR_RETURN(const state::StateLayout layout, state::StateLayout::FromProto(tensors));
  const std::vector<runtime::StateInterval> targets = session.RestoreTargets();
  const std::vector<NamedFile> files = OlderFiles(folder, generation);
  // The same on every rank, whenever it was told.
  MP_RETURN_IF_ERROR(communicator.AllReduce(absl::MakeSpan(&least_step, 1), comm::ReduceOp::kMax));
  Claims claims({layout, TensorsDigest(tensors), job, session.trainer_state()});
  // First what this rank had itself, so that ranks share what their host has.
  for (const NamedFile& file : files) {
    if (file.rank == communicator.rank()) claims.Add(file.path);
  }
  MP_RETURN_IF_ERROR(communicator.Barrier());
  for (const NamedFile& file : files) {
    if (file.rank != communicator.rank()) claims.Add(file.path);
  }
  MP_ASSIGN_OR_RETURN(const std::vector<v1::MemoryHoldings> holdings,
                      GatherHoldings(HoldingsOf(claims, targets), communicator));
  const std::optional<Moment> moment = NewestWholeMoment(layout, holdings, least_step);
  if (!moment.has_value()) return std::optional<v1::TrainerState>();
  const std::vector<Move> moves = PlanMoves(layout, holdings, *moment);
  MP_RETURN_IF_ERROR(Exchange(moves, claims, targets, communicator));
  return std::make_optional(StateOf(holdings, *moment));
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
