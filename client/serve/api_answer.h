// What a client is answered, in the form of OpenAI's API: a whole answer, or the chunks of a stream
// of server-sent events.
//
//   const AnswerHead head = {.chat = true, .id = "chatcmpl-1", .created = now, .model = "m"};
//   stream->Write(BeginChunk(head));            // of chats: who speaks
//   stream->Write(TextChunk(head, "Hel"));      // any number
//   stream->Write(EndChunk(head, "stop"));    // of each choice: head.choice
//   stream->Write(UsageChunk(head, usage));     // where the client asked for it
//   stream->Write(kDoneChunk);
//
// Pure; thread-safe.
#ifndef MILEPOST_CLIENT_SERVE_API_ANSWER_H_
#define MILEPOST_CLIENT_SERVE_API_ANSWER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace milepost::client {

struct AnswerHead {
  bool chat = false;
  std::string id;
  int64_t created = 0;  // Unix seconds
  std::string model;
  bool include_usage = false;  // chunks have a null `usage`, until one has it
  int64_t choice = 0;          // which of the answers chunks are of
};

// In tokens. The answer's include one that ends it.
struct TokenUsage {
  int64_t prompt = 0;
  int64_t answer = 0;
};

struct AnswerChoice {
  std::string text;  // of the token by itself
  double log_prob = 0;
};

// A token of an answer. The first of a prompt, which nothing is before, has no figures.
struct AnswerToken {
  AnswerChoice token;
  std::vector<AnswerChoice> best;  // the likeliest in its place, in falling order
  int64_t characters = 0;          // that the answer's text is longer by
  bool scored = true;
};

// Tokens that a part of an answer tells of; none: it tells of no tokens.
struct AnswerTokens {
  std::vector<AnswerToken> tokens;
  int64_t offset = 0;  // characters of the answer's text before them
};

// Of UTF-8.
int64_t Characters(absl::string_view text);

struct WholeChoice {
  std::string text;
  // "stop": the model ended, or a stop text came; "length": no more tokens were allowed.
  std::string finish;
  std::optional<AnswerTokens> tokens = std::nullopt;
};

// `choices`: in their order.
std::string WholeAnswer(const AnswerHead& head, const std::vector<WholeChoice>& choices,
                        const TokenUsage& usage);

inline constexpr char kDoneChunk[] = "data: [DONE]\n\n";
std::string BeginChunk(const AnswerHead& head);
std::string TextChunk(const AnswerHead& head, absl::string_view text,
                      const std::optional<AnswerTokens>& tokens = {});
std::string EndChunk(const AnswerHead& head, absl::string_view finish,
                     const std::optional<AnswerTokens>& tokens = {});
std::string UsageChunk(const AnswerHead& head, const TokenUsage& usage);
// After chunks that have already gone out: what went wrong.
std::string ErrorChunk(const absl::Status& status);

// The answers of GET /v1/models and /v1/models/NAME.
std::string ModelsJson(const std::string& model, int64_t created);
std::string ModelJson(const std::string& model, int64_t created);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_API_ANSWER_H_
