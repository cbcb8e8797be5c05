// What moves where when expert ranks exchange rows (ops/expert_parallel): the transfers with the
// other ranks, and what stays on this one.
//
//   MP_RETURN_IF_ERROR(moves.Set(shape, {y, offsets, rows}, {z, segments, room}));
//   status = communicator.Exchange(moves.transfers, moves.among);   // and copy moves.stays
//
// Pure. Not thread-safe.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_ROW_TRANSFERS_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_ROW_TRANSFERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/comm/communicator.h"
#include "engine/ops/expert_parallel/expert_parallel_contract.h"

namespace milepost::runtime {

// Rows by rank and of one rank by expert: the i-th expert's are [at[i], at[i + 1]), and there is
// room for so many. `at` lies in host memory, `begin` anywhere.
template <typename Byte>
struct RowsByExpert {
  Byte* begin = nullptr;
  const int32_t* at = nullptr;  // [experts + 1]
  int64_t room = 0;
};

struct RowTransfers {
  comm::RankSet among;  // the expert ranks; of count 1: there is no other
  int own = 0;          // this one's index among them
  std::vector<comm::Communicator::Transfer> transfers;
  // Of this rank's rows for its own experts.
  struct Copy {
    const char* from = nullptr;
    char* to = nullptr;
    int64_t bytes = 0;
  };
  Copy stays;

  // INTERNAL: rows that begin where they cannot, or more than there is room for.
  absl::Status Set(const kernels::ExpertRowsShape& shape, const RowsByExpert<const char>& from,
                   const RowsByExpert<char>& to);
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_ROW_TRANSFERS_H_
