#include "coordinator/coordinator_flags.h"

#include "common/flags/number_range.h"
#include "common/flags/value_check.h"
#include "common/http/listen.h"
#include "common/rpc/endpoint.h"

namespace milepost::coordinator {

namespace {

void AddJoinFlags(CLI::App* app, Flags* flags) {
  app->add_option("--worker-authority", flags->worker_authority,
                  "Folder with ca.crt and ca.key, init-pki's `ca`: signs the certificates of "
                  "workers that join with a token; without it none can join");
  app->add_option("--worker-certificate-days", flags->worker_certificate_days,
                  "How long these hold; workers renew them after half of it")
      ->check(NumberRange(0.01, 398.0))
      ->capture_default_str();
}

void AddServiceAccountFlags(CLI::App* app, ServiceAccountOptions* accounts) {
  app->add_option("--service-account-keys", accounts->keys,
                  "Lets pods of a Kubernetes cluster join by their service accounts: the cluster's "
                  "keys, a file or an https:// address such as "
                  "https://kubernetes.default.svc/openid/v1/jwks (docs/operate/kubernetes.md)");
  app->add_option("--service-account-issuer", accounts->claims.issuer,
                  "The cluster, as its tokens name it: the API server's --service-account-issuer");
  app->add_option("--service-account-audience", accounts->claims.audience,
                  "Whom these tokens must be for")
      ->capture_default_str();
  app->add_option("--service-account-keys-ca", accounts->authority,
                  "PEM file of the authority that the address of the keys is trusted by (default: "
                  "the system's)");
  app->add_option("--service-account-keys-token", accounts->token,
                  "File with the bearer token that the address of the keys asks for");
}

void AddServingFlags(FlagTable* table, Flags* flags) {
  CLI::App* app = &table->app();
  table->Required(
      app->add_option("--data-dir", flags->data_dir, "Where jobs and checkpoints are kept"));
  app->add_option("--listen", flags->listen, "HOST:PORT; port 0 takes any free one")
      ->check(ValueCheck(CheckListenAddress))
      ->capture_default_str();
  app->add_option("--address-file", flags->address_file,
                  "Write HOST:PORT here once the coordinator serves, or listens as a standby");
  app->add_option("--lease-seconds", flags->lease_seconds,
                  "A worker that is silent for so long counts as lost")
      ->check(NumberRange(0.2, 3600.0))
      ->capture_default_str();
  app->add_option("--log-bytes-per-job", flags->logs.bytes_per_job,
                  "What is kept of a job's log, 64MiB or 1000000; the oldest lines are dropped")
      ->transform(SizeValue())
      ->capture_default_str();
  app->add_option("--log-bytes", flags->logs.total_bytes,
                  "What is kept of all logs together; those of jobs that have ended go first")
      ->transform(SizeValue())
      ->capture_default_str();
  app->add_option("--bin-days", flags->bin_days,
                  "A checkpoint that somebody has deleted can be restored for so long, as long as "
                  "the disk has room")
      ->check(NumberRange(0.0, 36500.0))
      ->capture_default_str();
  app->add_option("--max-files-bytes", flags->max_files_bytes,
                  "What the files that are sent along with scripts may have together; those of a "
                  "deleted job go an hour later")
      ->transform(SizeValue())
      ->capture_default_str();
  app->add_option("--webhooks", flags->webhooks,
                  "YAML file: who is told over HTTP of jobs that have ended "
                  "(docs/operate/webhooks.md)");
  app->add_option(
         "--http", flags->http,
         "HOST:PORT of pages for monitoring: /metrics for Prometheus, /healthz for probes; "
         "over TLS where --tls is given (docs/operate/metrics.md)")
      ->check(ValueCheck(CheckListenAddress));
  table->Once(app->add_flag(
      "--workers-gone", flags->workers_gone,
      "No worker of before is alive, nor any of its ranks: what they ran goes on from its "
      "checkpoints, at no cost to its restart budget. `milepost run` says so of earlier "
      "runs. Not in a --config file"));
  app->add_option("--tls", flags->tls_dir,
                  "Folder with ca.crt, tls.crt and tls.key, as init-pki makes it; needed to listen "
                  "on an address that is not loopback");
  AddJoinFlags(app, flags);
  AddServiceAccountFlags(app, &flags->service_accounts);
}

void AddLiveFlags(FlagTable* table, Flags* flags) {
  CLI::App* app = &table->app();
  table->Live(
      app->add_option(
             "--stop-seconds", flags->stop_seconds,
             "What the ranks of a job that is suspended, preempted, drained, resized or out of "
             "time have for a last checkpoint")
          ->check(NumberRange(1.0, 86400.0))
          ->capture_default_str());
  table->Live(
      app->add_option(
             "--resize-seconds", flags->resize_seconds,
             "An elastic job that may have more ranks is left alone for so long after a start")
          ->check(NumberRange(0.0, 1e6))
          ->capture_default_str());
  table->Live(
      app->add_option(
             "--exclude-after", flags->exclude_after,
             "A host with so many device or host failures within an hour gets no ranks before "
             "it has passed a health check; 0: never")
          ->check(CLI::Range(0, 8))
          ->capture_default_str());
  table->Live(
      app->add_option("--forget-worker-hours", flags->forget_worker_hours,
                      "A worker that has been DOWN for so long is forgotten, unless somebody has "
                      "drained it or it is excluded")
          ->check(NumberRange(1.0, 1e6))
          ->capture_default_str());
  table->Live(app->add_option("--log-level", flags->log_level, "debug, info, warn or error")
                  ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
                  ->capture_default_str());
  table->Live(
      app->add_option(
             "--max-job-bytes", flags->max_job_bytes,
             "What the records of all jobs may have together, also of those that have ended; "
             "they are kept in memory, and no more jobs are taken beyond it")
          ->transform(SizeValue())
          ->capture_default_str());
}

void AddStandbyFlags(FlagTable* table, Flags* flags) {
  CLI::App* app = &table->app();
  app->add_option("--etcd", flags->standby.etcd,
                  "HOST:PORT,... of etcd, where coordinators on one --data-dir elect the one that "
                  "is active; the others stand by")
      ->delimiter(',');
  app->add_option("--etcd-tls", flags->standby.etcd_tls_dir,
                  "Folder with etcd's ca.crt, and the tls.crt and tls.key to show it");
  app->add_option("--etcd-key", flags->standby.key, "The key in etcd; one per cluster")
      ->capture_default_str();
  app->add_option("--etcd-lease-seconds", flags->etcd_lease_seconds,
                  "How long etcd may be away before the active coordinator stops; as much later a "
                  "standby takes over")
      ->check(NumberRange(2.0, 3600.0))
      ->capture_default_str();
  app->add_option("--advertise", flags->standby.advertise,
                  "HOST:PORT under which the others reach this one (default: --listen)")
      ->check(ValueCheck(CheckAddresses));
}

}  // namespace

void AddFlags(FlagTable* table, Flags* flags) {
  AddServingFlags(table, flags);
  AddLiveFlags(table, flags);
  AddStandbyFlags(table, flags);
}

LiveValues LiveValuesOf(const Flags& flags, absl::Duration lease) {
  LiveValues live;
  live.config.lease = lease;
  live.config.graceful_stop = absl::Seconds(flags.stop_seconds);
  live.config.resize_interval = absl::Seconds(flags.resize_seconds);
  live.config.exclude_after = flags.exclude_after;
  live.config.forget_worker_after = absl::Hours(flags.forget_worker_hours);
  live.most_job_bytes = flags.max_job_bytes;
  return live;
}

}  // namespace milepost::coordinator
