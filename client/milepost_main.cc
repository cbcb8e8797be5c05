// milepost: the command line.
#include "client/cli/app.h"
#include "common/rpc/grpc_log.h"
#include "common/standard_fds.h"

int main(int argc, char** argv) {
  milepost::OpenStandardFds();
  milepost::ForwardGrpcLog();
  return milepost::client::Main(argc, argv);
}
