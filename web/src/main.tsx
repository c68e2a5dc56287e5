import { render } from "preact";
import { App } from "./app";
import { Feed } from "./feed";

render(<App feed={new Feed()} />, document.body);
