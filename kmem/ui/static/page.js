/* What a visitor changed stays while the page renews itself: what is typed or chosen in a form that
   only asks (data-keep), and which details are open. Everything else becomes what the server says,
   and an element that has not changed is not touched. */
"use strict";
Idiomorph.defaults.callbacks.beforeNodeMorphed = (node) => !node.dataset?.hasOwnProperty("keep");
Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) =>
  !(name === "open" && element.tagName === "DETAILS");
