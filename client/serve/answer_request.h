// Answers one request with a model.
//
//   AnswerRequest(request, {.id = "chatcmpl-1", .model = "m", .seed = 7}, model, reply);
#ifndef MILEPOST_CLIENT_SERVE_ANSWER_REQUEST_H_
#define MILEPOST_CLIENT_SERVE_ANSWER_REQUEST_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "client/serve/api_request.h"
#include "client/serve/text_model.h"

namespace milepost::client {

// Where an answer goes: a whole one, or a stream's chunks, or an error in the place of either.
class TextReply {
 public:
  virtual ~TextReply() = default;
  // Nobody waits for the answer any more. Does not block.
  virtual bool Left() const = 0;
  // An error, before all else.
  virtual void Fail(const absl::Status& status) = 0;
  // A whole answer in JSON.
  virtual void Whole(std::string json) = 0;
  // A part of a stream. The first one begins it. Does not block.
  virtual void Write(const std::string& chunk) = 0;
  // Ends a stream.
  virtual void End() = 0;
};

struct AnswerContext {
  std::string id;
  int64_t created = 0;  // Unix seconds
  std::string model;
  uint64_t seed = 0;  // where the request has none
};

// Blocks until all is handed to `reply`, or it was left: then the model's texts end at the next
// token. Keeps nothing. Returns the model's error where it cannot go on (UNAVAILABLE).
absl::Status AnswerRequest(const TextRequest& request, const AnswerContext& context,
                           TextModel& model, TextReply& reply);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_ANSWER_REQUEST_H_
