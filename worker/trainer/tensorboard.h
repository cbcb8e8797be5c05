// Writes scalars to a TensorBoard event file.
//
//   MP_ASSIGN_OR_RETURN(auto events, TensorBoardWriter::Create("/runs/a", start_step, now));
//   events->Add("train/loss", step, loss, now);
//   events->Flush();
//
// The format is TFRecord framing (length, masked CRC-32C, data, masked CRC-32C) of tensorflow.Event
// messages (github.com/tensorflow/tensorboard, compat/proto/event.proto and summary.proto). A run
// that resumes writes a new file. Its first event tells TensorBoard to drop what earlier files have
// from that step on. Not thread-safe. Flush writes to the file and does not sync it.
#ifndef MILEPOST_WORKER_TRAINER_TENSORBOARD_H_
#define MILEPOST_WORKER_TRAINER_TENSORBOARD_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace milepost::worker {

class TensorBoardWriter {
 public:
  // Makes the folder if it does not exist. Errors name it.
  static absl::StatusOr<std::unique_ptr<TensorBoardWriter>> Create(const std::string& folder,
                                                                   int64_t start_step,
                                                                   absl::Time now);

  // Values that are not finite are kept, because TensorBoard shows them.
  void Add(absl::string_view tag, int64_t step, double value, absl::Time now);

  // Writes the values added since the last Flush. After an error nothing more is written.
  absl::Status Flush();

  const std::string& path() const { return path_; }

 private:
  TensorBoardWriter(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  void AddRecord(const std::string& event);

  const std::string path_;
  UniqueFd fd_;
  std::string pending_;
};

// CRC-32C (Castagnoli, RFC 3720).
uint32_t Crc32c(absl::string_view data);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_TENSORBOARD_H_
