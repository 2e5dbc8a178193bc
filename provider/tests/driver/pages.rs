//! The pages of the documentation are those of the schema. `make fix` writes them.

use std::path::Path;
use std::{env, fs};

use trust_fabric_provider::ephemeral::Ephemeral;
use trust_fabric_provider::resource::Resource;
use trust_fabric_provider::schema::pages::page;
use trust_fabric_provider::{ephemerals, resources, settings};

#[test]
fn pages_equal_the_schema() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("checkout").join("docs/terraform");
    let resources = resources::all().into_iter().map(Resource::table);
    let resources = resources.map(|table| (table.name.to_owned(), table));
    let ephemerals = ephemerals::all().into_iter().map(Ephemeral::table);
    let ephemerals = ephemerals.map(|table| (format!("ephemeral_{}", table.name), table));
    let provider = ("provider".to_owned(), &settings::TABLE);
    for (name, table) in [provider].into_iter().chain(resources).chain(ephemerals) {
        let path = directory.join(format!("{name}.md"));
        if env::var_os("TRUST_FABRIC_REWRITE").is_some() {
            fs::create_dir_all(&directory).expect("directory");
            fs::write(&path, page(table)).expect("written");
        }
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert!(written == page(table), "{}: run make fix", path.display());
    }
}
