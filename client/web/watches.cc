#include "client/web/watches.h"

#include <google/protobuf/message.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/web/json_api.h"
#include "client/web/json_messages.h"

namespace milepost::client {
namespace {

constexpr char kEventStream[] = "text/event-stream";
constexpr char kComment[] = ":\n\n";
constexpr char kRetry[] = "retry: 1000\n\n";

std::string EndEvent(const absl::Status& status) {
  return absl::StrCat("event: end\ndata: ", StatusJson(status), "\n\n");
}

// Whoever comes later needs the newest message alone.
bool IsShared(const ApiMethod& method) { return method.path == "JobService/WatchJob"; }

}  // namespace

Watches::Watches(GenericClient coordinator, const WatchOptions& options)
    : coordinator_(std::move(coordinator)), options_(options), ticker_([this] { Tick(); }) {}

Watches::~Watches() {
  std::vector<std::shared_ptr<Source>> sources;
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    sources = sources_;
  }
  ticker_.join();
  for (const auto& source : sources) {
    const std::shared_ptr<GenericStream> stream = StreamOf(*source);
    if (stream != nullptr) stream->Cancel();
  }
  const auto none = [this] {
    mutex_.AssertReaderHeld();
    return sources_.empty() && open_ == 0;
  };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&none));
}

size_t Watches::streams() {
  absl::MutexLock lock(&mutex_);
  return sources_.size();
}

void Watches::Add(const Watch& watch, const HttpAnswer& answer) {
  {
    absl::MutexLock lock(&mutex_);
    if (stop_ || open_ >= options_.most ||
        of_principal_[watch.principal] >= options_.most_of_principal) {
      return answer(ErrorResponse(absl::ResourceExhaustedError("too many streams are open")));
    }
    ++open_;
    ++of_principal_[watch.principal];
  }
  auto stream = std::make_shared<HttpStream>(options_.most_bytes);
  stream->Write(kRetry);
  const std::shared_ptr<Source> source = Join(watch, stream);
  stream->OnClose([this, source, raw = stream.get(), principal = watch.principal] {
    Leave(source, raw, principal);
  });
  answer({.content_type = kEventStream, .stream = stream});
}

std::shared_ptr<Watches::Source> Watches::Join(const Watch& watch,
                                               const std::shared_ptr<HttpStream>& stream) {
  const std::string key = IsShared(*watch.method)
                              ? absl::StrCat(watch.principal, " ", watch.method->path, " ",
                                             watch.fields, " ", watch.request)
                              : "";
  auto source = std::make_shared<Source>();
  bool found = false;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& one : sources_) {
      if (key.empty() || one->key != key || one->ended) continue;
      source = one;
      found = true;
    }
    if (!found) {
      source->key = key;
      source->method = watch.method;
      source->fields = watch.fields;
      source->readers.push_back({stream, watch.may_go_on});
      sources_.push_back(source);
    }
  }
  if (!found) {
    Start(watch, source);
    return source;
  }
  absl::MutexLock order(&source->order);
  bool ended = false;
  {
    absl::MutexLock lock(&mutex_);
    ended = source->ended;
    if (!ended) source->readers.push_back({stream, watch.may_go_on});
  }
  stream->Write(source->last);
  if (ended) {  // just now: the page asks again
    stream->Write(EndEvent(absl::UnavailableError("ask again")));
    stream->End();
  }
  return source;
}

void Watches::Start(const Watch& watch, const std::shared_ptr<Source>& source) {
  auto stream = coordinator_.Stream(
      watch.method->grpc, watch.request, watch.token,
      [this, source](const std::string& bytes) { return OnMessage(source, bytes); },
      [this, source](const absl::Status& status) { OnEnd(source, status); });
  bool unwanted = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!source->ended) source->stream = stream;
    unwanted = stop_ || source->readers.empty();
  }
  if (unwanted) stream->Cancel();
  stream->Resume();  // where there has been no room before it was there
}

std::vector<Watches::Reader> Watches::ReadersOf(Source* source) {
  absl::MutexLock lock(&mutex_);
  return source->readers;
}

std::shared_ptr<GenericStream> Watches::StreamOf(const Source& source) {
  absl::MutexLock lock(&mutex_);
  return source.stream;
}

bool Watches::OnMessage(const std::shared_ptr<Source>& source, const std::string& bytes) {
  const auto message = source->method->NewResponse();
  if (!message->ParseFromString(bytes)) return true;
  if (!KeepFields(source->fields, message.get()).ok()) return true;
  const std::string event = absl::StrCat("data: ", ToJson(*message), "\n\n");
  absl::MutexLock order(&source->order);
  const std::vector<Reader> readers = ReadersOf(source.get());
  for (const Reader& reader : readers) reader.stream->Write(event);
  if (!source->key.empty()) {
    source->last = event;
    return true;
  }
  if (readers.empty() || !readers[0].stream->full()) return true;
  // The coordinator waits for who reads slowly, and reads on when that one has.
  readers[0].stream->OnRoom([this, source] {
    const std::shared_ptr<GenericStream> stream = StreamOf(*source);
    if (stream != nullptr) stream->Resume();
  });
  return false;
}

void Watches::OnEnd(const std::shared_ptr<Source>& source, const absl::Status& status) {
  absl::MutexLock order(&source->order);
  std::vector<Reader> readers;
  {
    absl::MutexLock lock(&mutex_);
    source->ended = true;
    source->stream = nullptr;
    readers = source->readers;
  }
  for (const Reader& reader : readers) {
    reader.stream->Write(EndEvent(status));
    reader.stream->End();
  }
  absl::MutexLock lock(&mutex_);
  sources_.erase(std::remove(sources_.begin(), sources_.end(), source), sources_.end());
}

void Watches::Leave(const std::shared_ptr<Source>& source, const HttpStream* stream,
                    const std::string& principal) {
  std::shared_ptr<GenericStream> unwanted;
  {
    absl::MutexLock lock(&mutex_);
    source->readers.erase(
        std::remove_if(source->readers.begin(), source->readers.end(),
                       [&](const Reader& reader) { return reader.stream.get() == stream; }),
        source->readers.end());
    if (source->readers.empty()) unwanted = source->stream;
  }
  if (unwanted != nullptr) unwanted->Cancel();
  absl::MutexLock lock(&mutex_);  // last: the destructor waits for it
  --open_;
  if (--of_principal_[principal] == 0) of_principal_.erase(principal);
}

void Watches::Tick() {
  while (true) {
    std::vector<Reader> readers;
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), options_.comment_every)) return;
      for (const auto& source : sources_) {
        readers.insert(readers.end(), source->readers.begin(), source->readers.end());
      }
    }
    for (const Reader& reader : readers) {
      if (reader.may_go_on && !reader.may_go_on()) {
        reader.stream->Write(EndEvent(absl::UnauthenticatedError("the login is over")));
        reader.stream->End();
      } else {
        reader.stream->Write(kComment);
      }
    }
  }
}

}  // namespace milepost::client
