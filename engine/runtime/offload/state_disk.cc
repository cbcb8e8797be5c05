#include "engine/runtime/offload/state_disk.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::runtime {
namespace {

static_assert(plan::kDiskBlock == kStateFileBlock);

constexpr char kDiskPayload[] = "milepost/disk";

// Of processes and sessions that share a folder; only messages and file systems without nameless
// files show it.
std::string PathIn(const std::string& folder, int rank) {
  static std::atomic<int> opened{0};
  return absl::StrCat(folder, "/milepost-optimizer-", getpid(), "-", opened.fetch_add(1), "-rank",
                      rank);
}

}  // namespace

absl::Status DiskFailure(const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status error = status;
  if (absl::IsDeadlineExceeded(status)) error = absl::InternalError(status.message());
  error.SetPayload(kDiskPayload, absl::Cord());
  return error;
}

bool IsDiskFailure(const absl::Status& status) {
  return status.GetPayload(kDiskPayload).has_value();
}

StateDisk::StateDisk(const plan::StepPlan& plan, char* host_arena)
    : plan_(plan), pieces_(plan.groups.size()), stored_(plan.groups.size(), false) {
  size_t most = 0;
  for (size_t i = 0; i < plan.disk_regions.size(); ++i) {
    const plan::DiskRegion& region = plan.disk_regions[i];
    std::vector<Piece>& pieces = pieces_[region.group];
    pieces.push_back({.region = static_cast<int>(i),
                      .data = host_arena + plan.buffers[region.buffer].offset,
                      .bytes = region.bytes});
    most = std::max(most, pieces.size());
  }
  for (std::vector<int>& regions : under_way_) regions.reserve(most);
}

absl::StatusOr<std::unique_ptr<StateDisk>> StateDisk::Open(const plan::StepPlan& plan,
                                                           const std::string& folder, int rank,
                                                           char* host_arena,
                                                           StateFileOptions file) {
  constexpr char kField[] = "train.offload.path";
  if (folder.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kField, ": name a folder on a local disk for the optimizer's state"));
  }
  auto disk = std::unique_ptr<StateDisk>(new StateDisk(plan, host_arena));
  file.path = PathIn(folder, rank);
  for (const plan::DiskRegion& region : plan.disk_regions) file.regions.push_back(region.bytes);
  absl::StatusOr<std::unique_ptr<StateFile>> opened = StateFile::Create(file);
  if (absl::IsNotFound(opened.status()) || absl::IsPermissionDenied(opened.status())) {
    return absl::Status(opened.status().code(),
                        absl::StrCat(kField, ": ", opened.status().message(),
                                     ": it must be a folder on every worker, and writable there"));
  }
  if (!opened.ok()) return DiskFailure(Annotate(opened.status(), kField));
  disk->file_ = *std::move(opened);
  return disk;
}

absl::Status StateDisk::Begin(int group, bool write) {
  const int turn = plan_.groups[group].disk_turn;
  MP_RETURN_IF_ERROR(Await(turn));
  for (const Piece& piece : pieces_[group]) {
    MP_RETURN_IF_ERROR(DiskFailure(write ? file_->Write(piece.region, piece.data)
                                         : file_->Read(piece.region, piece.data)));
    under_way_[turn].push_back(piece.region);
  }
  return absl::OkStatus();
}

absl::Status StateDisk::Await(int turn) {
  absl::Status status;
  // A disk that is silent is waited for once, not for each of them.
  for (const int region : under_way_[turn]) {
    status = file_->Wait(region);
    if (!status.ok()) break;
  }
  under_way_[turn].clear();
  return DiskFailure(status);
}

absl::Status StateDisk::AwaitAll() {
  absl::Status status;
  for (int turn = 0; turn < plan::kDiskTurns; ++turn) status.Update(Await(turn));
  return status;
}

absl::Status StateDisk::LoadPieces(int group, size_t count) {
  MP_RETURN_IF_ERROR(AwaitAll());
  absl::Status status;
  for (size_t i = 0; i < count; ++i) {
    const Piece& piece = pieces_[group][i];
    if (stored_[group]) {
      status.Update(file_->Read(piece.region, piece.data));
    } else {
      std::memset(piece.data, 0, static_cast<size_t>(piece.bytes));
    }
  }
  for (size_t i = 0; stored_[group] && i < count; ++i) {
    status.Update(file_->Wait(pieces_[group][i].region));
  }
  return DiskFailure(status);
}

absl::Status StateDisk::Load(int group) { return LoadPieces(group, pieces_[group].size()); }

absl::Status StateDisk::LoadMaster(int group) { return LoadPieces(group, Has(group) ? 1 : 0); }

absl::Status StateDisk::Store(int group) {
  stored_[group] = true;
  MP_RETURN_IF_ERROR(Begin(group, /*write=*/true));
  return Await(plan_.groups[group].disk_turn);
}

absl::StatusOr<BoundOp> BindDiskTransfer(const OpBinding& b) {
  if (b.disk == nullptr) return absl::InternalError("the state is on disk, and there is no file");
  return [disk = b.disk, group = b.attributes().group,
          write = b.planned.op.kind == graph::OpKind::kWriteState](const StepContext&) {
    return disk->Begin(group, write);
  };
}

absl::StatusOr<BoundOp> AfterItsState(const OpBinding& b, absl::StatusOr<BoundOp> update) {
  const int turn = b.plan.groups[b.attributes().group].disk_turn;
  if (!update.ok() || turn < 0) return update;
  if (b.disk == nullptr) return absl::InternalError("the state is on disk, and there is no file");
  return [disk = b.disk, turn, update = *std::move(update)](const StepContext& context) {
    MP_RETURN_IF_ERROR(disk->Await(turn));
    return update(context);
  };
}

}  // namespace milepost::runtime
