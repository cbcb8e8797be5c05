// What a rank saves of tensors that tensor ranks divide. Each of these ranks has its runs of all
// rows of such a tensor (graph::TensorDivision). A checkpoint has whole tensors in few pieces: so
// each rank fetches the other runs of some rows, and saves these rows whole.
//
//   DividedRows rows(/*ranks=*/2, /*rank=*/1, /*first_rank=*/4);
//   rows.Add({.held = interval, .item_bytes = 4, .begin = 0, .end = 4096});
//   rows.Allocate();
//   MP_RETURN_IF_ERROR(rows.Share(communicator));    // collective
//   for (const StateInterval& saved : rows.Intervals()) ...
//
// Not synchronised. Intervals point to its memory and to that of what was added.
#ifndef MILEPOST_ENGINE_RUNTIME_SESSION_DIVIDED_ROWS_H_
#define MILEPOST_ENGINE_RUNTIME_SESSION_DIVIDED_ROWS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "engine/runtime/executor/state_interval.h"

namespace milepost::comm {
class Communicator;
}

namespace milepost::runtime {

class DividedRows {
 public:
  // A piece of a divided tensor's state, which all tensor ranks have alike of their own runs.
  struct Piece {
    StateInterval held;
    int64_t item_bytes = 0;
    int64_t begin = 0;  // of the rank's own elements of the tensor
    int64_t end = 0;
  };

  // Of tensor rank `rank` of `ranks`; `first_rank` is the first one's rank in the job.
  DividedRows(int ranks, int rank, int first_rank)
      : ranks_(ranks), rank_(rank), first_rank_(first_rank) {}

  // A piece of the next tensor; no piece where this rank has nothing of it. Every rank of the job
  // adds as many.
  void Add(const std::optional<Piece>& piece);
  // After the last piece.
  void Allocate();

  // Fetches the rows that this rank saves. Collective; blocks. The errors are the communicator's.
  absl::Status Share(comm::Communicator& communicator);
  // Without gaps: the rows, and the rest of a row at either end of a piece, where it lies.
  std::vector<StateInterval> Intervals() const;

 private:
  // Whole rows of a piece, numbered as the tensor's.
  struct Rows {
    int32_t tensor = 0;
    int64_t item_bytes = 0;
    int64_t run = 0, period = 0;  // elements
    int64_t first = 0, last = 0;
    const char* data = nullptr;  // this rank's runs of them
    int64_t at = 0;              // bytes from the begin of rows_ to those that this rank saves
    int64_t Begin(int rank, int ranks) const { return first + (last - first) * rank / ranks; }
    int64_t RunsBytes(int rank, int ranks) const {
      return (Begin(rank + 1, ranks) - Begin(rank, ranks)) * run * item_bytes;
    }
  };
  absl::Status Share(const Rows& rows, comm::Communicator& communicator);
  // Runs of tensor rank `from` into this rank's rows.
  void Place(const Rows& rows, int from, const char* runs);

  const int ranks_, rank_, first_rank_;
  std::vector<Rows> all_;  // by tensor; without rows where this rank has no whole one
  std::vector<StateInterval> rests_;
  std::unique_ptr<char[]> rows_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_SESSION_DIVIDED_ROWS_H_
