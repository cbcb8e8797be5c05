#include "client/serve/api_refusals.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "client/serve/api_error.h"

namespace milepost::client {
namespace {

using nlohmann::json;

// `neutral`: values, as a JSON list, that ask for nothing. Empty lists, objects and texts and
// `false` never do.
struct Refused {
  const char* name;
  const char* neutral;
  const char* why;
};

constexpr char kNoChoice[] = "this server gives every answer that it makes";
constexpr char kNoTools[] = "this server calls no tools";
constexpr char kNoForm[] = "this server cannot force the form of an answer";
constexpr char kNoPenalty[] =
    "this server chooses tokens by temperature, top_p, top_k and seed alone";
constexpr char kTextAlone[] = "this server reads and writes text alone";
constexpr char kTemplate[] = "the prompt is made by the tokenizer's own chat template";

constexpr Refused kRefused[] = {
    {"best_of", "[1]", kNoChoice},
    {"use_beam_search", "[]", kNoChoice},
    {"suffix", "[]", "this server only goes on with a text: it fills in nothing before a suffix"},
    {"tools", "[]", kNoTools},
    {"tool_choice", R"(["none", "auto"])", kNoTools},
    {"functions", "[]", kNoTools},
    {"function_call", R"(["none", "auto"])", kNoTools},
    {"web_search_options", "[]", kNoTools},
    {"response_format", R"([{"type": "text"}])", kNoForm},
    {"structured_outputs", "[]", kNoForm},
    {"guided_json", "[]", kNoForm},
    {"guided_regex", "[]", kNoForm},
    {"guided_choice", "[]", kNoForm},
    {"guided_grammar", "[]", kNoForm},
    {"grammar", "[]", kNoForm},
    {"json_schema", "[]", kNoForm},
    {"prompt_logprobs", "[]", "`echo` with `logprobs` tells those of the prompt"},
    {"logit_bias", "[]", kNoPenalty},
    {"presence_penalty", "[0]", kNoPenalty},
    {"frequency_penalty", "[0]", kNoPenalty},
    {"repetition_penalty", "[1]", kNoPenalty},
    {"repeat_penalty", "[1]", kNoPenalty},
    {"min_p", "[0]", kNoPenalty},
    {"typical_p", "[1]", kNoPenalty},
    {"mirostat", "[0]", kNoPenalty},
    {"bad_words", "[]", kNoPenalty},
    {"allowed_token_ids", "[]", kNoPenalty},
    {"min_tokens", "[0]",
     "an answer ends where the model ends it: `stop` and `max_tokens` end it "
     "earlier"},
    {"ignore_eos", "[]", "an answer ends where the model ends it"},
    {"stop_token_ids", "[]", "this server stops at texts: give them as `stop`"},
    {"include_stop_str_in_output", "[]", "an answer ends before the stop text"},
    {"skip_special_tokens", "[true]", "special tokens are not shown"},
    {"add_special_tokens", "[true]", "the tokenizer adds its special tokens: give ids instead"},
    {"modalities", R"([["text"]])", kTextAlone},
    {"audio", "[]", kTextAlone},
    {"chat_template", "[]", kTemplate},
    {"add_generation_prompt", "[true]", kTemplate},
    {"continue_final_message", "[]", kTemplate},
    {"documents", "[]", kTemplate},
    {"reasoning_effort", R"(["none"])",
     "this server passes on no effort: `chat_template_kwargs` sets the template's own variables"},
};

bool AsksForNothing(const json& value, const char* neutral) {
  if (value.is_null() || value == json(false)) return true;
  // A number or `true` counts as one element.
  if (value.empty() || (value.is_string() && value.get_ref<const std::string&>().empty())) {
    return true;
  }
  for (const json& one : json::parse(neutral)) {
    if (value == one) return true;
  }
  return false;
}

}  // namespace

absl::Status CheckRefusals(const json& request) {
  for (const Refused& refused : kRefused) {
    const auto found = request.find(refused.name);
    if (found == request.end()) continue;
    // It is on unless it is turned off.
    const bool on = json::parse(refused.neutral) == json::array({true});
    if (on ? *found == json(true) || found->is_null() : AsksForNothing(*found, refused.neutral)) {
      continue;
    }
    return BadParameter(refused.name,
                        absl::StrCat("`", refused.name, "` is not supported: ", refused.why),
                        "unsupported_parameter");
  }
  return absl::OkStatus();
}

}  // namespace milepost::client
