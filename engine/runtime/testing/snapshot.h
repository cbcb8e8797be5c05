// For tests: the state of all ranks as a checkpoint would hold it.
//
//   Snapshot snapshot;
//   std::mutex mutex;
//   RunRanks(spec, [&](int, TrainingSession& session) { ...; Save(session, snapshot, mutex); });
//   RunRanks(spec, [&](int, TrainingSession& session) { Restore(session, snapshot); ... });
#ifndef MILEPOST_ENGINE_RUNTIME_TESTING_SNAPSHOT_H_
#define MILEPOST_ENGINE_RUNTIME_TESTING_SNAPSHOT_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "common/status_macros.h"
#include "engine/runtime/session/fill_interval.h"
#include "engine/runtime/session/training_session.h"
#include "engine/state/layout.h"

namespace milepost::runtime {

// The bytes of a whole tensor.
class TensorData {
 public:
  TensorData() = default;
  TensorData(DType dtype, int64_t elements)
      : element_(ByteSize(dtype)), bytes_(static_cast<size_t>(elements * element_)) {}

  size_t size() const { return bytes_.size() / element_; }
  char* at(int64_t element) { return bytes_.data() + element * element_; }
  const char* at(int64_t element) const { return bytes_.data() + element * element_; }
  int64_t element_bytes() const { return element_; }
  float operator[](size_t element) const {  // F32 only
    float value;
    std::memcpy(&value, at(static_cast<int64_t>(element)), sizeof value);
    return value;
  }
  bool operator==(const TensorData&) const = default;

 private:
  int64_t element_ = 4;
  std::vector<char> bytes_;
};

struct Snapshot {
  std::vector<v1::TensorInfo> tensors;
  std::vector<TensorData> data;
  std::vector<state::Interval> covered;
  std::vector<int64_t> rank_bytes;  // saved by each rank
  v1::TrainerState state;
};

// Adds what this rank saves.
inline void Save(TrainingSession& session, Snapshot& snapshot, std::mutex& mutex) {
  // With the other ranks, before any waits for the lock.
  const bool one_part = session.state_parts() == 1;
  if (one_part) {
    ASSERT_EQ(session.PrepareSave(), absl::OkStatus());
  }
  std::lock_guard lock(mutex);
  if (snapshot.tensors.empty()) {
    snapshot.tensors = session.state_tensors();
    for (const v1::TensorInfo& info : snapshot.tensors) {
      int64_t elements = 1;
      for (int64_t dimension : info.shape()) elements *= dimension;
      snapshot.data.emplace_back(*state::ParseDType(info.dtype()), elements);
    }
    snapshot.state = session.trainer_state();
  }
  EXPECT_EQ(session.trainer_state().SerializeAsString(), snapshot.state.SerializeAsString());
  snapshot.rank_bytes.push_back(0);
  for (int part = 0; part < session.state_parts(); ++part) {
    if (!one_part) {
      ASSERT_EQ(session.PrepareSave(part), absl::OkStatus());
    }
    for (const StateInterval& i : session.SaveSources(part)) {
      TensorData& tensor = snapshot.data[i.tensor];
      const int64_t bytes = (i.end - i.begin) * tensor.element_bytes();
      snapshot.rank_bytes.back() += bytes;
      std::memcpy(tensor.at(i.begin), i.data, static_cast<size_t>(bytes));
      snapshot.covered.push_back({i.tensor, i.begin, i.end});
    }
  }
}

// To the bit.
inline void ExpectSameState(const Snapshot& got, const Snapshot& want) {
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (size_t i = 0; i < got.tensors.size(); ++i) {
    EXPECT_TRUE(got.data[i] == want.data[i])
        << got.tensors[i].name() << " (" << got.tensors[i].kind() << ")";
  }
}

// The length of all tensors of one kind, as one vector.
inline double LengthOf(const Snapshot& state, const std::string& kind) {
  double sum = 0;
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    if (state.tensors[i].kind() != kind) continue;
    for (size_t e = 0; e < state.data[i].size(); ++e) sum += std::pow(state.data[i][e], 2);
  }
  return std::sqrt(sum);
}

// Of a job with adapters: gives what they adapt some values, as a folder would. Before Restore, or
// FinishRestore.
inline void GiveBase(TrainingSession& session) {
  for (const StateInterval& i : session.BaseTargets(/*part=*/0)) {
    const v1::TensorInfo& tensor = session.base_tensors()[static_cast<size_t>(i.tensor)];
    const auto read = [&](int64_t begin, int64_t end, float* at) {
      for (int64_t e = begin; e < end; ++e) {
        at[e - begin] = static_cast<float>((e * 7 + i.tensor * 3) % 19 - 9) / 64;  // exact in 16
      }
      return absl::OkStatus();
    };
    ASSERT_EQ(FillInterval(tensor, i, read), absl::OkStatus());
  }
}

inline absl::Status Restore(TrainingSession& session, const Snapshot& snapshot) {
  for (int part = 0; part < session.state_parts(); ++part) {
    MP_RETURN_IF_ERROR(session.FetchState(part));
    for (const StateInterval& i : session.RestoreTargets(part)) {
      const TensorData& tensor = snapshot.data[i.tensor];
      i.ForPieces(i.begin, i.end, [&](int64_t begin, int64_t end) {
        std::memcpy(i.data + i.ElementsBefore(begin) * tensor.element_bytes(), tensor.at(begin),
                    static_cast<size_t>((end - begin) * tensor.element_bytes()));
      });
    }
    MP_RETURN_IF_ERROR(session.StoreState(part));
  }
  return session.FinishRestore(snapshot.state);
}

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_TESTING_SNAPSHOT_H_
