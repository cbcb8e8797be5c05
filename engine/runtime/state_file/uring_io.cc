#include <liburing.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/runtime/state_file/block_io.h"

namespace milepost::runtime {
namespace {

class Uring : public BlockIo {
 public:
  explicit Uring(int fd) : fd_(fd) {}
  ~Uring() override {
    if (!open_) return;
    while (under_way_ > 0 && Next().ok()) {
    }
    io_uring_queue_exit(&ring_);
  }

  absl::Status Open(int depth) {
    const int error = io_uring_queue_init(static_cast<unsigned>(depth), &ring_, 0);
    if (error < 0) {
      return absl::UnavailableError(
          absl::StrCat("the kernel refuses io_uring: ", strerror(-error)));
    }
    open_ = true;
    return absl::OkStatus();
  }

  absl::Status Submit(const BlockRequest& request) override {
    Prepare(request);
    int submitted = 0;
    do {
      submitted = io_uring_submit(&ring_);
    } while (submitted == -EINTR);
    if (submitted < 0) {
      return absl::InternalError(absl::StrCat("io_uring_submit: ", strerror(-submitted)));
    }
    ++under_way_;
    return absl::OkStatus();
  }

  absl::StatusOr<BlockResult> Next() override {
    io_uring_cqe* entry = nullptr;
    int error = 0;
    do {
      error = io_uring_wait_cqe(&ring_, &entry);
    } while (error == -EINTR);
    if (error < 0) {
      return absl::InternalError(absl::StrCat("io_uring_wait_cqe: ", strerror(-error)));
    }
    const BlockResult result = {.tag = io_uring_cqe_get_data64(entry), .bytes = entry->res};
    io_uring_cqe_seen(&ring_, entry);
    --under_way_;
    return result;
  }

 private:
  void Prepare(const BlockRequest& request) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    MP_CHECK(entry != nullptr) << "more requests than the ring is deep";
    const auto bytes = static_cast<unsigned>(request.bytes);
    const auto offset = static_cast<uint64_t>(request.offset);
    if (request.write) {
      io_uring_prep_write(entry, fd_, request.data, bytes, offset);
    } else {
      io_uring_prep_read(entry, fd_, request.data, bytes, offset);
    }
    io_uring_sqe_set_data64(entry, request.tag);
  }

  const int fd_;
  io_uring ring_ = {};
  bool open_ = false;
  int64_t under_way_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockIo>> UringIo(int fd, int depth) {
  auto io = std::make_unique<Uring>(fd);
  MP_RETURN_IF_ERROR(io->Open(depth));
  return std::unique_ptr<BlockIo>(std::move(io));
}

}  // namespace milepost::runtime
