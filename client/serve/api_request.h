// What a client asks of a model, in the form of OpenAI's API.
//
//   MP_ASSIGN_OR_RETURN(const TextRequest request, ParseChatRequest(http.body));
//
// A parameter that changes the answer and is not honoured here is refused by its name, unless its
// value is the one that changes nothing. Other parameters are ignored. `null` is the same as
// leaving a parameter out. Pure; thread-safe.
#ifndef MILEPOST_CLIENT_SERVE_API_REQUEST_H_
#define MILEPOST_CLIENT_SERVE_API_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::client {

inline constexpr size_t kMostStops = 16;  // OpenAI has 4
inline constexpr size_t kMostStopBytes = 1024;
inline constexpr int64_t kMostBest = 20;

inline constexpr int64_t kMostAnswers = 64;  // to a request

// A text, or the ids of one.
struct RequestPrompt {
  std::string text;
  std::optional<std::vector<int32_t>> ids = std::nullopt;
};

struct TextRequest {
  bool chat = false;
  std::string model;  // empty: whichever is served

  // What the model goes on with: of completions the first, at least one; of chats the others.
  std::vector<RequestPrompt> prompts;
  std::string messages;            // a JSON array of {"role", "content"}, whose contents are text
  std::string template_arguments;  // a JSON object: further variables of the chat template

  std::optional<int64_t> tokens;  // at most; none: as many as there is room for
  double temperature = 1;
  double top_p = 1;
  int64_t top_k = 0;  // 0: all
  std::optional<uint64_t> seed;
  int64_t answers = 1;  // to each prompt, of the seed, the seed + 1, ...
  std::vector<std::string> stop;
  // Log-probabilities are told of tokens, and of so many of the likeliest.
  std::optional<int64_t> best;
  bool echo = false;  // the prompt is put before the answer
  bool stream = false;
  bool include_usage = false;  // of a stream
};

// The body of a POST to /v1/completions or /v1/chat/completions. INVALID_ARGUMENT
// (client/serve/api_error.h) names the parameter.
absl::StatusOr<TextRequest> ParseCompletionRequest(absl::string_view body);
absl::StatusOr<TextRequest> ParseChatRequest(absl::string_view body);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_API_REQUEST_H_
