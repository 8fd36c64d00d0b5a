// The host executor's version of CUDA's header (tests/simt/README.md).
#pragma once

#include "tests/simt/collectives.h"
#include "tests/simt/intrinsics.h"
#include "tests/simt/launch.h"
#include "tests/simt/runtime_api.h"
#include "tests/simt/types.h"
