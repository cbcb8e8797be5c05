// Any body as a request to `milepost serve`: refused with an error that is JSON, or a request
// within its bounds. And the same bytes as what a model writes: the client gets valid UTF-8, up to
// the stop text, however they are cut.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "client/serve/api_error.h"
#include "client/serve/api_request.h"
#include "client/serve/text_pieces.h"
#include "common/check.h"
#include "common/http/http_status.h"

namespace milepost::client {
namespace {

void CheckRequest(const absl::StatusOr<TextRequest>& request) {
  if (!request.ok()) {
    MP_CHECK(HttpStatusOf(request.status()) == 400);
    const auto error = nlohmann::json::parse(ErrorJson(request.status()), nullptr, false);
    MP_CHECK(error.is_object() && !error["error"]["message"].get<std::string>().empty());
    return;
  }
  MP_CHECK(request->tokens.value_or(1) >= 1);
  MP_CHECK(request->temperature >= 0 && request->top_p > 0 && request->top_p <= 1);
  MP_CHECK(request->top_k >= 0 && request->stop.size() <= kMostStops);
  MP_CHECK(request->chat == request->prompts.empty() && request->answers >= 1);
  MP_CHECK(static_cast<int64_t>(request->prompts.size()) * request->answers <= kMostAnswers);
  for (const RequestPrompt& prompt : request->prompts) {
    MP_CHECK(!prompt.ids.has_value() || !prompt.ids->empty());
  }
  if (request->chat) {
    MP_CHECK(nlohmann::json::parse(request->messages, nullptr, false).is_array());
    MP_CHECK(nlohmann::json::parse(request->template_arguments, nullptr, false).is_object());
  }
}

// `cut`: bytes of a piece.
std::string Shown(absl::string_view bytes, size_t cut, const std::string& stop_text) {
  Utf8Pieces utf8;
  StopText stop({stop_text});
  std::string shown;
  for (size_t at = 0; at < bytes.size(); at += cut) {
    shown += stop.Feed(utf8.Feed(bytes.substr(at, cut)));
  }
  shown += stop.Feed(utf8.Rest());
  return shown + stop.Rest();
}

void Try(absl::string_view text) {
  CheckRequest(ParseCompletionRequest(text));
  CheckRequest(ParseChatRequest(text));
  const std::string stop = "\": ";
  const std::string whole = Shown(text, text.size() + 1, stop);
  MP_CHECK(whole == Shown(text, 1, stop) && whole == Shown(text, 3, stop));
  MP_CHECK(!absl::StrContains(whole, stop));
  MP_CHECK(!nlohmann::json(whole).dump().empty());  // it throws for what is not UTF-8
}

}  // namespace
}  // namespace milepost::client

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  milepost::client::Try({reinterpret_cast<const char*>(data), size});
  return 0;
}
