// A model in a process of its own, `milepost-trainer serve`, which has the device; and beside it
// Python, which has the tokenizer.
//
//   ModelProcesses model({.trainer = trainer, .tokenizer = python});
//   MP_RETURN_IF_ERROR(model.Load());     // blocks until the model is in memory
//   ... model.Generate(...) ...           // from any threads, until Cancel
//   model.Cancel();                       // from any thread: kills both
#ifndef MILEPOST_CLIENT_SERVE_MODEL_PROCESSES_H_
#define MILEPOST_CLIENT_SERVE_MODEL_PROCESSES_H_

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "client/serve/text_model.h"
#include "client/serve/trainer_texts.h"
#include "common/line_pipe.h"
#include "common/subprocess.h"

namespace milepost::client {

struct ModelProcessOptions {
  SpawnOptions trainer;
  // `generate_text.py serve`, which says what its lines are. An empty argv: there is no tokenizer,
  // and tokens are bytes.
  SpawnOptions tokenizer;
};

// SIGPIPE must be ignored.
class ModelProcesses : public TextModel {
 public:
  explicit ModelProcesses(ModelProcessOptions options) : options_(std::move(options)) {}
  ~ModelProcesses() override;

  // Starts both, and blocks until they are ready. Once. FAILED_PRECONDITION: Python lacks a
  // package. INVALID_ARGUMENT: the tokenizer cannot be read, or the model needs one. INTERNAL: the
  // trainer has ended; it has said on stderr why. CANCELLED.
  absl::Status Load();
  // Or one after the other, where it depends on what Encode says which trainer is wanted. Errors
  // are Load's.
  absl::Status LoadTokenizer();
  absl::Status LoadTrainer(SpawnOptions trainer);
  // Kills both processes. Calls that wait for them end with UNAVAILABLE, Load with CANCELLED.
  // Thread-safe.
  void Cancel();
  // Descriptors that become readable when a process has ended, once Load has returned.
  std::vector<int> ends() const;

  const TextModelFacts& facts() const override { return facts_; }
  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text) override;
  absl::StatusOr<std::vector<int32_t>> EncodeChat(const std::string& messages,
                                                  const std::string& arguments) override;
  absl::StatusOr<std::vector<std::string>> Decode(absl::Span<const int32_t> ids) override;
  absl::StatusOr<std::vector<std::string>> TokenTexts(absl::Span<const int32_t> ids) override;
  absl::Status Generate(absl::Span<const TextLine> texts, bool whole_text, const Left& left,
                        const EmitPiece& emit) override;
  absl::Status Score(absl::Span<const TextLine> texts, const Left& left,
                     const EmitScore& emit) override;

 private:
  struct Talk {
    Subprocess process;
    UniqueFd in;
    LineReader out;
  };
  class Streams;
  // CANCELLED: Cancel was called.
  absl::Status Spawn(SpawnOptions options, std::optional<Talk>* talk);
  bool HasTokenizer() const { return !options_.tokenizer.argv.empty(); }
  absl::Status Finish(absl::Status loaded);
  absl::Status AwaitTrainer();
  absl::Status AwaitTokenizer();
  // A line of JSON to the tokenizer, and its answer. INVALID_ARGUMENT: it refuses.
  absl::StatusOr<std::string> AskTokenizer(const std::string& line)
      ABSL_LOCKS_EXCLUDED(tokenizer_mutex_);
  absl::StatusOr<std::vector<std::string>> AskTexts(const char* what,
                                                    absl::Span<const int32_t> ids);

  const ModelProcessOptions options_;
  TextModelFacts facts_;
  // Of the processes: set by Load, signalled by Cancel.
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Subprocess*> running_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex texts_mutex_;
  absl::flat_hash_map<int32_t, std::string> token_texts_
      ABSL_GUARDED_BY(texts_mutex_);  // as they were asked for
  std::atomic<int64_t> streams_ = 0;  // how many texts were written token by token
  std::optional<Talk> trainer_;
  std::optional<TrainerTexts> trainer_texts_;  // on the trainer's pipes, once it is loaded
  // Set by Load; a question and its answer at a time.
  absl::Mutex tokenizer_mutex_;
  std::optional<Talk> tokenizer_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_MODEL_PROCESSES_H_
