// Everything in dgc::core.
#pragma once

#include "dgc/compressor.h"
#include "dgc/error.h"
#include "dgc/schedule.h"
#include "dgc/state.h"
#include "dgc/target.h"
#include "dgc/version.h"
#include "dgc/wire.h"
