// The coordinator's streams as server-sent events. All pages that watch the same job with the same
// token share one stream. Each reader of logs has its own stream.
//
//   watches.Add({.method = method, .request = bytes, .principal = principal, ...}, answer);
//
// Each message is an event without a name; its data is the message's JSON. At the end comes one
// event "end", whose data is a google.rpc.Status, and the answer is over. With code UNAVAILABLE,
// ask again. Comments between events reveal readers that have gone.
//
// The number of streams is bounded, in total and for one principal; further ones get 429.
// Thread-safe; does not block. No thread waits for a stream.
#ifndef MILEPOST_CLIENT_WEB_WATCHES_H_
#define MILEPOST_CLIENT_WEB_WATCHES_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/api/generic_client.h"
#include "client/web/api_methods.h"
#include "common/http/http_server.h"

namespace milepost::client {

struct WatchOptions {
  size_t most = 512;
  size_t most_of_principal = 256;
  size_t most_bytes = 1 << 20;  // bytes that wait for one reader
  absl::Duration comment_every = absl::Seconds(5);
};

struct Watch {
  const ApiMethod* method = nullptr;
  std::string request;  // serialized
  std::string fields;   // the fields to keep of each message (json_messages.h)
  std::string principal;
  std::string token;
  // Called now and then. False: the page's session is over, and the watch ends.
  std::function<bool()> may_go_on;
};

class Watches {
 public:
  Watches(GenericClient coordinator, const WatchOptions& options);
  ~Watches();  // ends all watches and waits until the coordinator's streams have ended
  Watches(const Watches&) = delete;
  Watches& operator=(const Watches&) = delete;

  void Add(const Watch& watch, const HttpAnswer& answer);
  size_t streams();  // number of open streams to the coordinator

 private:
  struct Reader {
    std::shared_ptr<HttpStream> stream;
    std::function<bool()> may_go_on;
  };
  // One stream from the coordinator.
  struct Source {
    std::string key;  // its key in sources_; empty: it is not shared
    const ApiMethod* method = nullptr;
    std::string fields;
    absl::Mutex order;                        // the order of readers' events; taken before mutex_
    std::string last ABSL_GUARDED_BY(order);  // the last event, for later readers
    std::shared_ptr<GenericStream> stream;    // guarded by mutex_
    std::vector<Reader> readers;              // likewise
    bool ended = false;                       // likewise
  };

  std::shared_ptr<Source> Join(const Watch& watch, const std::shared_ptr<HttpStream>& stream);
  void Start(const Watch& watch, const std::shared_ptr<Source>& source);
  bool OnMessage(const std::shared_ptr<Source>& source, const std::string& bytes);
  void OnEnd(const std::shared_ptr<Source>& source, const absl::Status& status);
  void Leave(const std::shared_ptr<Source>& source, const HttpStream* stream,
             const std::string& principal);
  std::vector<Reader> ReadersOf(Source* source);
  std::shared_ptr<GenericStream> StreamOf(const Source& source);  // null: it has none
  void Tick();

  GenericClient coordinator_;
  const WatchOptions options_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  size_t open_ ABSL_GUARDED_BY(mutex_) = 0;                             // number of readers
  std::map<std::string, size_t> of_principal_ ABSL_GUARDED_BY(mutex_);  // readers
  std::vector<std::shared_ptr<Source>> sources_ ABSL_GUARDED_BY(mutex_);
  std::thread ticker_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_WEB_WATCHES_H_
