#include "coordinator/webhooks/webhook_file.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/regular_file.h"
#include "common/spec/scheduling.h"
#include "common/spec/to_yaml.h"
#include "common/spec/yaml_tree.h"
#include "common/status_macros.h"
#include "common/utf8.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kMostWebhooks = 32;
constexpr size_t kShortestSecret = 16;
constexpr size_t kLongestText = 2048;
constexpr size_t kMostTextBytes = 1000;  // of a message that is told
constexpr size_t kMaxFileBytes = 1 << 20;

std::string StateName(const v1::Job& job) {
  const auto* value = v1::JobState_descriptor()->FindValueByNumber(job.state());
  return value == nullptr ? "" : absl::AsciiStrToLower(EnumYamlName(*value));
}

// "host", "host:8080" and "[::1]:8080", with what follows.
bool HasHostAndPort(absl::string_view url) {
  url.remove_prefix(url.find("://") + 3);
  absl::string_view authority = url.substr(0, url.find_first_of("/?#"));
  if (const size_t at = authority.rfind('@'); at != authority.npos) authority.remove_prefix(at + 1);
  const size_t colon = authority.find(
      ':', absl::StartsWith(authority, "[") ? std::min(authority.find(']'), authority.size()) : 0);
  if (colon == authority.npos) return !authority.empty();
  int port = 0;
  return colon > 0 && absl::SimpleAtoi(authority.substr(colon + 1), &port) && port > 0 &&
         port < 65536;
}

absl::Status CheckWebhook(const Webhook& webhook) {
  if (!IsQueueId(webhook.name)) {
    return absl::InvalidArgumentError("name: must be 1 to 63 letters, digits, '-', '_' and '.'");
  }
  const bool http =
      absl::StartsWith(webhook.url, "https://") || absl::StartsWith(webhook.url, "http://");
  const bool printable = std::all_of(webhook.url.begin(), webhook.url.end(), absl::ascii_isgraph);
  if (!http || !printable || webhook.url.size() > kLongestText) {
    return absl::InvalidArgumentError("url: must begin with https:// or http://");
  }
  if (!HasHostAndPort(webhook.url)) {
    return absl::InvalidArgumentError("url: expected https://HOST/PATH or https://HOST:PORT/PATH");
  }
  if (webhook.secret.size() < kShortestSecret || webhook.secret.size() > kLongestText) {
    return absl::InvalidArgumentError(absl::StrCat("secret: must have at least ", kShortestSecret,
                                                   " characters: openssl rand -hex 32"));
  }
  for (const std::string& state : webhook.states) {
    if (state == "succeeded" || state == "failed" || state == "cancelled") continue;
    return absl::InvalidArgumentError("states: expected succeeded, failed and cancelled");
  }
  return absl::OkStatus();
}

// Values are never shown: one of them is a secret.
absl::Status Fill(const YamlNode& item, Webhook* webhook) {
  if (item.kind != YamlNode::Kind::kMapping) {
    return absl::InvalidArgumentError("expected a mapping with name, url and secret");
  }
  const std::map<std::string, std::string*> texts = {
      {"name", &webhook->name}, {"url", &webhook->url}, {"secret", &webhook->secret}};
  const std::map<std::string, std::vector<std::string>*> lists = {{"projects", &webhook->projects},
                                                                  {"states", &webhook->states}};
  for (const auto& [key, value] : item.fields) {
    const auto text = texts.find(key.scalar);
    const auto list = lists.find(key.scalar);
    if (text != texts.end() && value.kind == YamlNode::Kind::kScalar) {
      *text->second = value.scalar;
    } else if (list != lists.end() && value.kind == YamlNode::Kind::kSequence) {
      for (const YamlNode& one : value.items) list->second->push_back(one.scalar);
    } else if (text == texts.end() && list == lists.end()) {
      return absl::InvalidArgumentError(
          "a field is not known; expected name, url, secret, projects and states");
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(key.scalar, ": expected ", list == lists.end() ? "text" : "a list"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Webhook>> ParseWebhooks(absl::string_view text,
                                                   absl::string_view filename) {
  MP_ASSIGN_OR_RETURN(const YamlNode root, ParseYamlTree(text, filename));
  const auto bad = [&](int line, absl::string_view problem) {
    return absl::InvalidArgumentError(
        absl::StrCat(filename, ":", std::max(1, line), ": ", problem));
  };
  const bool list = root.kind == YamlNode::Kind::kMapping && root.fields.size() == 1 &&
                    root.fields[0].key.scalar == "webhooks" &&
                    root.fields[0].value.kind == YamlNode::Kind::kSequence;
  if (!list) return bad(root.line, "expected a list `webhooks:`, and nothing else");
  std::vector<Webhook> webhooks;
  std::set<std::string> names;
  for (const YamlNode& item : root.fields[0].value.items) {
    Webhook& webhook = webhooks.emplace_back();
    absl::Status status = Fill(item, &webhook);
    if (status.ok()) status = CheckWebhook(webhook);
    if (status.ok() && !names.insert(webhook.name).second) {
      status = absl::InvalidArgumentError("name: another one has it");
    }
    if (!status.ok()) return bad(item.line, status.message());
  }
  if (webhooks.size() > kMostWebhooks) {
    return bad(root.line, absl::StrCat("webhooks: at most ", kMostWebhooks));
  }
  return webhooks;
}

absl::StatusOr<std::vector<Webhook>> ReadWebhooks(const std::string& path) {
  const auto text = ReadRegularFile(path, kMaxFileBytes);
  if (!text.ok()) return Annotate(text.status(), "--webhooks");
  return ParseWebhooks(*text, path);
}

bool Wants(const Webhook& webhook, const v1::Job& job) {
  const auto has = [](const auto& list, const std::string& wanted) {
    return list.empty() || std::find(list.begin(), list.end(), wanted) != list.end();
  };
  const std::string project = job.project().empty() ? "default" : job.project();
  return has(webhook.projects, project) && has(webhook.states, StateName(job));
}

std::string WebhookBody(const v1::Job& job) {
  v1::Job told;
  told.set_name(job.name());
  told.set_uid(job.uid());
  told.set_project(job.project().empty() ? "default" : job.project());
  *told.mutable_labels() = job.labels();
  told.mutable_spec()->set_name(job.spec().name());
  told.set_state(job.state());
  told.set_reason(job.reason());
  told.set_reason_detail(CutUtf8(job.reason_detail(), kMostTextBytes));
  *told.mutable_create_time() = job.create_time();
  *told.mutable_end_time() = job.end_time();
  told.set_generation(job.generation());
  told.set_latest_checkpoint(job.latest_checkpoint());
  if (job.has_array()) {  // without its overrides: they are of the spec
    told.mutable_array()->set_name(job.array().name());
    told.mutable_array()->set_index(job.array().index());
    told.mutable_array()->set_size(job.array().size());
  }
  if (job.has_first_failure()) {
    const v1::Failure& failure = job.first_failure();
    told.mutable_first_failure()->set_class_(failure.class_());
    told.mutable_first_failure()->set_rank(failure.rank());
    told.mutable_first_failure()->set_worker(failure.worker());
    told.mutable_first_failure()->set_message(CutUtf8(failure.message(), kMostTextBytes));
  }
  nlohmann::ordered_json body;
  body["event"] = "job.ended";
  body["job"] = MessageToJson(told);
  body["job"]["step"] = job.progress().step();
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace milepost::coordinator
