// For tests and benchmarks: a real etcd as a child process.
//
//   if (!EtcdProcess::Available()) return;                 // Debian's etcd-server is not installed
//   EtcdProcess etcd({.folder = folder});
//   ASSERT_EQ(etcd.Start(), absl::OkStatus());
//   EtcdClient client({etcd.endpoint()});
//   etcd.Kill();                                           // Start again: the same ports and data
//
// Not thread-safe. Start blocks until etcd answers. etcd dies with this process.
#ifndef MILEPOST_COORDINATOR_ELECTION_ETCD_PROCESS_H_
#define MILEPOST_COORDINATOR_ELECTION_ETCD_PROCESS_H_

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/endpoint.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "common/subprocess.h"
#include "common/unique_fd.h"

namespace milepost::coordinator {

class EtcdProcess {
 public:
  struct Options {
    std::string folder;  // its data goes to folder/etcd, its output to folder/etcd.log
    // Folder of etcd's ca.crt, tls.crt and tls.key. Clients must show a certificate of that
    // authority. Empty: plain text.
    std::string tls_dir;
    std::string client_tls_dir;      // folder of this process's own certificate
    std::string address;             // HOST:PORT; empty: a free port of loopback
    std::vector<std::string> enter;  // a command that runs the rest of its command line
  };

  static bool Available() { return access(kBinary, X_OK) == 0; }

  explicit EtcdProcess(Options options)
      : options_(std::move(options)),
        address_(options_.address.empty() ? FreeAddress() : options_.address),
        peer_(FreeAddress()) {}

  absl::Status Start() {
    if (!options_.tls_dir.empty() && credentials_ == nullptr) {
      MP_ASSIGN_OR_RETURN(credentials_, WorkerCredentials(options_.client_tls_dir));
    }
    SpawnOptions spawn;
    spawn.argv = options_.enter;
    for (std::string& argument : Command()) spawn.argv.push_back(std::move(argument));
    spawn.out = spawn.err = Redirect::File(options_.folder + "/etcd.log");
    MP_ASSIGN_OR_RETURN(Subprocess process, Subprocess::Spawn(std::move(spawn)));
    process_ = std::make_unique<Subprocess>(std::move(process));
    const auto channel = MakeChannel(endpoint());
    if (channel->WaitForConnected(absl::ToChronoTime(absl::Now() + kPatience))) {
      return absl::OkStatus();
    }
    return absl::DeadlineExceededError(
        absl::StrCat("etcd does not answer: see ", options_.folder, "/etcd.log"));
  }

  void Signal(int signal) { process_->Signal(signal).IgnoreError(); }

  void Kill() {
    Signal(SIGKILL);
    process_->Wait().IgnoreError();
  }

  const std::string& address() const { return address_; }
  // Valid after Start.
  Endpoint endpoint() const { return Endpoint(address_, credentials_); }

 private:
  static constexpr char kBinary[] = "/usr/bin/etcd";
  static constexpr absl::Duration kPatience = absl::Seconds(60);

  // A port that was free a moment ago.
  static std::string FreeAddress() {
    const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name = {};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    auto* generic = reinterpret_cast<sockaddr*>(&name);
    if (bind(fd.get(), generic, size) != 0 || getsockname(fd.get(), generic, &size) != 0) abort();
    return absl::StrCat("127.0.0.1:", ntohs(name.sin_port));
  }

  std::vector<std::string> Command() const {
    const bool tls = !options_.tls_dir.empty();
    const std::string client = absl::StrCat(tls ? "https://" : "http://", address_);
    const std::string peer = "http://" + peer_;
    std::vector<std::string> argv = {kBinary,
                                     "--data-dir",
                                     options_.folder + "/etcd",
                                     "--listen-client-urls",
                                     client,
                                     "--advertise-client-urls",
                                     client,
                                     "--listen-peer-urls",
                                     peer,
                                     "--initial-advertise-peer-urls",
                                     peer,
                                     "--initial-cluster",
                                     "default=" + peer,
                                     "--logger",
                                     "zap"};
    if (tls) {
      const TlsFolder files(options_.tls_dir);
      // The gateway would show the server's certificate as a client's.
      argv.insert(argv.end(), {"--cert-file", files.certificate(), "--key-file", files.key(),
                               "--trusted-ca-file", files.authority(), "--client-cert-auth",
                               "--enable-grpc-gateway=false"});
    }
    return argv;
  }

  const Options options_;
  const std::string address_, peer_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::unique_ptr<Subprocess> process_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_ELECTION_ETCD_PROCESS_H_
