// milepost: the command line.
#include "client/cli/app.h"

int main(int argc, char** argv) { return milepost::client::Main(argc, argv); }
