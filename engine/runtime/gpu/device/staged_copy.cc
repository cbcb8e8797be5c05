#include "engine/runtime/gpu/device/staged_copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/status_macros.h"

namespace milepost::runtime {
namespace {

// One thread copies about 10 GB/s, a GPU sends 50.
void CopyOnHost(char* to, const char* from, int64_t bytes, int threads) {
  constexpr int64_t kPiece = 256 << 10;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t begin = 0; begin < bytes; begin += kPiece) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(std::min(kPiece, bytes - begin)));
  }
}

}  // namespace

absl::StatusOr<StagedCopy> StagedCopy::Make(Device* device, StreamId stream, int threads,
                                            Options options) {
  const int64_t bytes = options.slots * options.slot_bytes;
  MP_ASSIGN_OR_RETURN(HostMirror memory, HostMirror::Make(bytes));
  memory.Pin(*device, {{0, bytes}}).IgnoreError();  // slower without
  StagedCopy staged(device, stream, std::max(1, threads), options.slot_bytes, std::move(memory));
  for (int i = 0; i < options.slots; ++i) {
    MP_ASSIGN_OR_RETURN(const EventId copied, device->AddEvent());
    staged.slots_.push_back({staged.memory_.data() + i * options.slot_bytes, copied});
  }
  return staged;
}

std::vector<StagedCopy::Transfer> StagedCopy::Pieces(absl::Span<const Transfer> transfers) const {
  std::vector<Transfer> pieces;
  for (const Transfer& transfer : transfers) {
    for (int64_t begin = 0; begin < transfer.bytes; begin += slot_bytes_) {
      pieces.push_back({transfer.to + begin, transfer.from + begin,
                        std::min(slot_bytes_, transfer.bytes - begin)});
    }
  }
  return pieces;
}

absl::Status StagedCopy::Send(const Slot& slot, char* to, const char* from, int64_t bytes) {
  MP_RETURN_IF_ERROR(device_->Copy(stream_, to, from, bytes));
  return device_->Record(slot.copied, stream_);
}

absl::Status StagedCopy::ToHost(absl::Span<const Transfer> transfers, absl::Duration timeout) {
  const std::vector<Transfer> pieces = Pieces(transfers);
  const auto send = [&](size_t i) {
    const Slot& slot = SlotOf(i);
    return Send(slot, slot.data, pieces[i].from, pieces[i].bytes);
  };
  for (size_t i = 0; i < std::min(slots_.size(), pieces.size()); ++i) {
    MP_RETURN_IF_ERROR(send(i));
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Slot& slot = SlotOf(i);
    MP_RETURN_IF_ERROR(device_->Await(slot.copied, timeout));
    CopyOnHost(pieces[i].to, slot.data, pieces[i].bytes, threads_);
    if (i + slots_.size() < pieces.size()) MP_RETURN_IF_ERROR(send(i + slots_.size()));
  }
  return absl::OkStatus();
}

absl::Status StagedCopy::ToDevice(absl::Span<const Transfer> transfers, absl::Duration timeout) {
  for (const Transfer& transfer : transfers) {
    const auto copy = [&](int64_t begin, int64_t bytes, char* at) {
      CopyOnHost(at, transfer.from + begin, bytes, threads_);
    };
    MP_RETURN_IF_ERROR(ToDevice(transfer.to, transfer.bytes, copy, timeout));
  }
  return absl::OkStatus();
}

absl::Status StagedCopy::ToDevice(char* to, int64_t bytes, Source source, absl::Duration timeout) {
  for (int64_t begin = 0; begin < bytes; begin += slot_bytes_) {
    const int64_t count = std::min(slot_bytes_, bytes - begin);
    const Slot& slot = SlotOf(turn_++);
    MP_RETURN_IF_ERROR(device_->Await(slot.copied, timeout));
    source(begin, count, slot.data);
    MP_RETURN_IF_ERROR(Send(slot, to + begin, slot.data, count));
  }
  return absl::OkStatus();
}

}  // namespace milepost::runtime
