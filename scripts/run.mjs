// `npm start` and friends: set up whatever is missing, then run the command line given.
import path from "node:path";
import { build, installDependencies, root, run } from "./setup.mjs";

installDependencies();
build();
process.exit(run(process.execPath, [path.join(root, "dist", "src", "cli.js"), ...process.argv.slice(2)]));
