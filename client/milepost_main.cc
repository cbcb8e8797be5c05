// milepost: the command line.
#include "client/cli/app.h"
#include "common/standard_fds.h"

int main(int argc, char** argv) {
  milepost::OpenStandardFds();
  return milepost::client::Main(argc, argv);
}
