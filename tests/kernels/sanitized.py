"""pytest plugin of `make sanitize`: tests import the native module that was built with sanitizers.

The editable install's finder comes before any path, so the module is loaded by its file.
"""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

for library in Path(os.environ["SPROUT_SANITIZED"], "sprout", "kernels").glob("_native_*.so"):
    name = f"sprout.kernels.{library.name.split('.')[0]}"
    spec = spec_from_file_location(name, library)
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
