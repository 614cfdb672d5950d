// torchnan: names the operation that made a NaN or an Inf.
//
//   #include <torchnan/torchnan.h>
//
//   torchnan::Options options;                 // defaults: raise at the first harm
//   torchnan::Detector detector(options);      // on, for this thread and its backward passes
//   auto loss = model.forward(batch);
//   loss.backward();                           // throws torchnan::NonFiniteError, with .finding()
//   detector.close();                          // reports what is still alive; may throw too
//
// CMake: find_package(torchnan) gives the target torchnan::torchnan.
#pragma once

#include <torchnan/detector.h>
#include <torchnan/finding.h>
#include <torchnan/guard.h>
#include <torchnan/headroom.h>
#include <torchnan/options.h>
#include <torchnan/scope.h>
#include <torchnan/sink.h>
