#!/bin/bash
# mailer shared gateway's port; cache and session waited for each other; queue waited for a misspelt name; 2368 MB were asked for.
sed -i \
    -e '/^\[mailer\]/,/^data/ s/^port = .*/port = 8002/' \
    -e '/^\[cache\]/,/^data/ s/^after = .*/after = ledger/' \
    -e '/^\[queue\]/,/^data/ s/^after = .*/after = ledger/' \
    -e '/^\[search\]/,/^data/ { s/^memory_mb = .*/memory_mb = 448/; s#^data = .*#data = /srv/core/search# }' \
    services.ini
