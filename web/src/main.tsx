import { render } from "preact";
import { App } from "./app";
import { Feed } from "./feed";

const feed = new Feed();
feed.connect();
render(<App feed={feed} />, document.body);
